"""Profiling: what may be told about where the time of a step goes.

Owns the phases of the engine's thread, and the form in which an executor says what its workers did. Whoever listens
brings the clock; the engine and the executor go on the same way whether anybody does or not.
Invariant: a phase lasts until the next one is told, so phases cover the thread's time without gap or overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from plait.core.ids import StepId

STALL_S = 0.001
"""A unit of work that takes longer lost its core, or was cut too large."""


class Phase(StrEnum):
    """What the engine's thread is at."""

    ARRIVALS = "arrivals"
    """Taking requests in: checks, admission, text streams."""
    COLLECT = "collect"
    """Bringing finished steps from the executor."""
    COMMIT = "commit"
    """What the scheduler and the cache make of them."""
    ANSWER = "answer"
    """Turning tokens into text and deltas; stop strings."""
    PLAN = "plan"
    SUBMIT = "submit"
    """Handing a step to the executor."""
    FLUSH = "flush"
    """Waking whoever waits for answers."""
    WAIT = "wait"
    PROFILE = "profile"
    """Adding up what was measured: the price of looking."""


PhaseSink = Callable[[Phase], None]
"""Told each time the engine goes on to a phase."""


def unheard(phase: Phase) -> None:
    """Nobody profiles."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What workers did in one step, in seconds."""

    kernel_s: float
    """In kernels, all workers together."""
    covered_s: float
    """With at least one worker in a kernel."""


@dataclass(frozen=True, slots=True)
class WorkTotals:
    """What workers did in all settled steps, all of them together."""

    kernel_s: Mapping[str, float]
    """By kind of operation."""
    runtime_s: float
    """Between operations: cutting the next one, publishing it, waking others."""
    num_units: int
    num_stalls: int
    """Units longer than STALL_S."""
    stalled_s: float
    """In these units, all workers together."""
    longest_unit_s: float
    num_lost: int
    """Intervals that found no room: they are in no sum."""


class WorkSlice(NamedTuple):
    """An interval of one worker. `step` is None where it waited."""

    worker: int
    name: str
    category: str
    begin_s: float
    end_s: float
    step: int | None


class WorkLog(Protocol):
    """Filled by an executor each time steps are collected; read by whoever profiles, from the same thread."""

    @property
    def num_workers(self) -> int:
        """How many workers it tells of."""

    @property
    def is_due(self) -> bool:
        """So much has come that it should be settled now."""

    @property
    def is_full(self) -> bool:
        """No more slices are kept; sums go on."""

    def settle(self) -> dict[StepId, StepWork]:
        """Add up the steps that were collected since the last call."""

    def totals(self) -> WorkTotals:
        """Of all settled steps."""

    def slices(self) -> Iterator[WorkSlice]:
        """Those that were kept, worker by worker, in the order in which they ended."""
