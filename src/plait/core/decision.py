"""Decisions: what a scheduler wants done now, and what it says about sequences after a step.

Owns the closed set of control verbs, and the reasons why sequences are left waiting. A decision is a value: the engine
applies it, tests compare it, logs replay it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import FinishReason
from plait.core.step import StepPlan, TokenLogprob


@dataclass(frozen=True, slots=True)
class Submit:
    plan: StepPlan


@dataclass(frozen=True, slots=True)
class Assign:
    """New shares for all lanes at once: `shares[lane]` is the set of share units (cores, SM slices) of that lane,
    disjoint.
    """

    shares: Mapping[LaneId, tuple[int, ...]]
    may_help: bool = False
    """Whether units whose lane has no step may meanwhile work on steps that began on other lanes, on those that rest
    for want of units too, but not on suspended ones.
    """


@dataclass(frozen=True, slots=True)
class Suspend:
    lane: LaneId


@dataclass(frozen=True, slots=True)
class Resume:
    lane: LaneId


@dataclass(frozen=True, slots=True)
class Cancel:
    step: StepId
    seqs: tuple[SeqId, ...]


Decision = Submit | Assign | Suspend | Resume | Cancel


class Blocked(StrEnum):
    """What ended the taking of waiting sequences into a step."""

    BY_BUDGET = "budget"
    """The step has as many tokens as it may."""
    BY_ROWS = "rows"
    """As many sequences run as may."""
    BY_MEMORY = "memory"
    BY_TIME = "time"
    """A step of one more would be longer than what was promised to those who run."""
    BY_PREFIX = "prefix"
    """A running sequence is computing what it would have to compute first."""


class SeqUpdate(NamedTuple):
    """New output tokens of a sequence, and how it ended if it did."""

    seq: SeqId
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    """The end-of-sequence or stop token that ended it; already left out of `tokens`' text by the engine."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of prompt tokens, in order, from the second on; those that were reported before are left out."""
    pooled: tuple[float, ...] | None = None
    """All of an embedding's answer; the sequence has ended then."""
    error: str | None = None

    @classmethod
    def of_tokens(cls, seq: SeqId, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> SeqUpdate:
        """Of a sequence that goes on, as nearly all do; made as `plait.core.step.Chunk.of_unknown` is."""
        return tuple.__new__(cls, (seq, tokens, logprobs, None, None, (), None, None))
