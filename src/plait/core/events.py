"""Events: the one typed stream of everything that happens.

Owns the event types. The engine emits them in order; histograms, progress bars and step traces are readers
(`plait.metrics`), and so is replay: Started, Submitted, Applied and Collected hold all that went to a device and came
back.
Invariant: Started comes first, `at_s` never decreases within one engine, and every Arrived is followed by exactly one
Finished of the same sequence. Refused stands for a request of which no sequence arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.core.decision import Assign, Blocked, Cancel, Resume, Suspend
from plait.core.executor import ExecutorInfo
from plait.core.ids import RequestId, SeqId
from plait.core.request import NO_SLO, FinishReason, ServiceClass, Slo
from plait.core.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Started:
    """An engine begins its work on this executor; `info.fingerprint` says whose bits the results are."""

    at_s: float
    info: ExecutorInfo


@dataclass(frozen=True, slots=True)
class Arrived:
    at_s: float
    request: RequestId
    seq: SeqId
    service_class: ServiceClass
    num_prompt: int
    slo: Slo = NO_SLO
    """What it is promised: its own targets, and those of its class."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was turned away before any work; `code` is the machine-readable reason."""

    at_s: float
    request: RequestId
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scheduled:
    """First tokens of a sequence were planned; `num_cached` prompt tokens came from the prefix index."""

    at_s: float
    seq: SeqId
    num_cached: int


@dataclass(frozen=True, slots=True)
class Submitted:
    at_s: float
    plan: StepPlan
    num_waiting: int
    num_running: int
    blocked: Blocked | None = None
    """Why sequences are left waiting, if any are."""


@dataclass(frozen=True, slots=True)
class Collected:
    at_s: float
    result: StepResult


class Emitted(NamedTuple):
    """Output tokens of a sequence reached the engine; the first event of a sequence is its first token."""

    at_s: float
    seq: SeqId
    num_tokens: int
    first_s: float | None = None
    """Of a run: when the first of them came; each further one came when a step of the `Collected` before ended."""

    @classmethod
    def of(cls, at_s: float, seq: SeqId, num_tokens: int, first_s: float | None) -> Emitted:
        """Made as `plait.core.step.Chunk.of_unknown` is."""
        return tuple.__new__(cls, (at_s, seq, num_tokens, first_s))


@dataclass(frozen=True, slots=True)
class Preempted:
    at_s: float
    seq: SeqId
    num_computed_lost: int


@dataclass(frozen=True, slots=True)
class Applied:
    """A control verb other than submit was given to the executor, which takes it up at its next op."""

    at_s: float
    decision: Assign | Suspend | Resume | Cancel


@dataclass(frozen=True, slots=True)
class Finished:
    at_s: float
    request: RequestId
    seq: SeqId
    reason: FinishReason
    num_prompt: int
    num_cached: int
    num_output: int
    num_preemptions: int
    arrival_s: float
    scheduled_s: float | None
    first_token_s: float | None


Event = Started | Arrived | Refused | Scheduled | Submitted | Applied | Collected | Emitted | Preempted | Finished

EventSink = Callable[[Event], None]

TokenSink = Callable[[float, float | None, Sequence[tuple[SeqId, int]]], None]
"""Told of all `Emitted` of a step at once: `at_s`, `first_s`, and (seq, num_tokens) of each."""
