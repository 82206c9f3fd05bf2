"""Situation: what a decision about prefill and decode is made of, as values.

Owns the form of it. Nothing here is a sequence, a plan or a memory: a decision is a pure function of a situation and
of prices, so that it can be written down, replayed and compared with another's.
Invariant: equal situations give equal decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from plait.core.ids import SeqId
from plait.core.step import StepShape

NEVER = math.inf
NOTHING = StepShape(())


class Decoding(NamedTuple):
    """A sequence that has said its first token. Seconds; a target of None is none."""

    seq: SeqId
    first_s: float
    """When it said its first token: the paper's decode start."""
    last_s: float
    num_said: int
    """Tokens since the first one, which is not counted."""
    itl_s: float | None = None
    """Bounds every gap: the sequence is never delayed on purpose."""
    tpot_s: float | None = None
    """Bounds the mean of the gaps."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Of somebody whose first token, or next one after a preemption, is still to come."""

    seq: SeqId
    arrival_s: float
    start: int
    """Tokens before those that have to be computed."""
    num_tokens: int
    due_s: float = NEVER
    """When its token should be there."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompts that are computed together, in flight or about to be."""

    prompts: tuple[Prompt, ...]
    shape: StepShape
    left: float = 1.0
    """Part of it that is not done."""

    @property
    def is_begun(self) -> bool:
        return self.left < 1.0

    def rest(self) -> list[Prompt]:
        """What comes behind it of prompts that are too long for one step, of which `shape` is."""
        pairs = zip(self.prompts, self.shape.chunks, strict=False)
        ends = [(one, chunk.start + chunk.num_tokens) for one, chunk in pairs]
        behind = [(one, end, one.start + one.num_tokens - end) for one, end in ends]
        return [replace(one, start=end, num_tokens=count) for one, end, count in behind if count > 0]


class Pace(NamedTuple):
    """How decode goes under a form, or prompts by themselves under PREFILL: a step takes `factor` of its price now, and
    the engine sees its end within `margin_s` behind that, but for one time in a hundred.
    """

    factor: float = 1.0
    margin_s: float = 0.0
    usual: float = 1.0
    """Of its price, whatever the present is like: what is wrong with the prices of the form."""


@dataclass(frozen=True, slots=True)
class Situation:
    """`decode` is the shape of the next decode step, or of the one in flight, of which `decode_left` is not done."""

    now_s: float
    decoding: tuple[Decoding, ...] = ()
    """Whom that step brings a token."""
    decode: StepShape = NOTHING
    decode_left: float = 1.0
    is_stepping: bool = False
    """Whether that step is in flight."""
    joining: tuple[Decoding, ...] = ()
    """Who joins the step after it."""
    merged: StepShape = NOTHING
    """Of that one, if anybody joins."""
    prefill: Prefill | None = None
    is_prefilling: bool = False
    """Whether it is in flight."""
    suspended: Prefill | None = None
    waiting: tuple[Prompt, ...] = ()
    """Behind `prefill`, in the order in which they are to be taken."""
    form: Form | None = None
    units: int = 0
    """What the last decision chose, and the units of decode in it."""
    paces: Mapping[Form, Pace] | None = None
    """DECODE being behind a turn of prompts, PREFILL prompts in turns or side by side; None: steps keep to prices."""


class Form(StrEnum):
    """How prompts and decode share the device."""

    FUSED = "fused"
    """One launch of both on all units."""
    LANES = "lanes"
    """Two, side by side."""
    DECODE = "decode"
    """Decode alone; a prefill in flight rests."""
    PREFILL = "prefill"
    """Prompts alone; no decode step is begun."""


class Reason(StrEnum):
    """Why a decision is what it is, for logs and tests."""

    ALONE = "nothing beside it"
    FEASIBLE = "the targets of decode hold"
    DELAYED = "decode can wait, prompts cannot"
    HAND_OVER = "the last layers of the last prompt"
    MOST_DECODE = "decode cannot hold its targets: as much as there is"
    BALANCED = "nothing holds its targets: the least of the worst"
    STARVED = "nothing holds the targets of decode: as little of prompts as goes on"
    DECODE_FIRST = "beside prompts decode would miss its targets, alone it holds them"
    UNBOUND = "decode has no targets"
    SLICE = "until decode has to go on"
    KEPT = "nothing better by more than the dead band"


@dataclass(frozen=True, slots=True)
class Choice:
    """`units`: of decode; prompts have the rest. With FUSED everything is one step, of `chunk_tokens` prompt tokens."""

    form: Form
    units: int
    reason: Reason
    chunk_tokens: int = 0
    num_spans: int = 0
    """N_PL: spans of the prefill that outlast the decode step; 0 where there is no such pair."""
    until_s: float = NEVER
    """When to decide anew although nothing has happened."""
