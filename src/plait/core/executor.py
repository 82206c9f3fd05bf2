"""Executor: what runs steps, seen from the engine.

Owns the control verbs and what an executor says of itself. Programs, weights and memory are given to an executor
before this interface is used (`plait.exec.loading`), so the engine never sees a tensor.
Invariant: steps of one lane run in order of submission; every submitted step is collected exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from plait.core.clock import WaitSource
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import StepPlan, StepResult, StepShape


class StepForm(StrEnum):
    FUSED = "fused"
    """One launch holds chunks of every kind."""
    LANES = "lanes"
    """Two plans side by side on disjoint shares; weights are read twice."""
    INTERLEAVED = "interleaved"
    """Two plans whose attention and GEMM parts run against each other."""


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What an executor can do. `fingerprint` identifies its numerics: equal fingerprints promise equal bits (if
    `bit_exact`).
    """

    name: str
    lanes: tuple[LaneId, ...]
    share_units: int
    """Cores or SM slices that `assign` hands out, numbered from 0."""
    forms: tuple[StepForm, ...]
    queue_depth: int
    """Steps of one lane that may be submitted and not collected."""
    max_step_tokens: int
    max_rows: int
    """Sequences joined at once, all lanes together."""
    memory_bytes: int
    """Device memory for the cache pool; 0 when nothing bounds it."""
    formats: tuple[str, ...]
    """Weight formats it computes with."""
    fingerprint: str
    bit_exact: bool
    """Whether a row's result is independent of everything else in the step, bit for bit."""
    pools: bool = False
    """Whether it takes outputs of kind POOL, so that it can be asked for embeddings."""
    imports: bool = False
    """Whether keys and values can be brought in from another device."""
    runs: bool = False
    """Whether it takes plans of several steps. Only a device that knows what is to come can be given one."""
    drafts: bool = False
    """Whether it verifies drafts, chains of them at least."""


class Foresight(Protocol):
    """Who knows what is to come, as in a simulation, so that steps without news between them are planned at once."""

    def num_steps(self, lane: LaneId, shape: StepShape, most: int, before_s: float) -> int:
        """How many steps may be planned as a run that begins with one of `shape`, 1 to `most`: planned one by one, each
        of them and the one behind them would find nothing new when its turn came, neither an arrival nor the moment
        `before_s`. Holds as long as no other lane is given work before the run has ended.
        """


class Executor(WaitSource, Protocol):
    @property
    def info(self) -> ExecutorInfo:
        """What this executor can do."""

    def submit(self, plan: StepPlan) -> None:
        """Queue a step on its lane; never blocks. A full queue or a faulty plan is our bug: `InvariantError`."""

    def assign(self, shares: Mapping[LaneId, tuple[int, ...]], *, may_help: bool = False) -> None:
        """Give every lane its share units, disjoint; effective at each lane's next op, nothing is drained. No units:
        the lane rests. `may_help` allows units whose lane has no step to work on a step that began on another lane
        until it has one, so that nothing stands still while the next step is planned; nobody has to make use of it.
        """

    def suspend(self, lane: LaneId) -> None:
        """Stop the lane at its next op. The running step keeps its context and its blocks. One level: suspending
        twice is our bug.
        """

    def resume(self, lane: LaneId) -> None:
        """Go on where the lane was suspended."""

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        """Skip the chunks of `seqs` from the next op on; a step without live chunks ends at once as CANCELLED, on a
        resting lane too. Unknown ids, and chunks that have ended, are ignored.

        A chunk queued behind a cancelled or failed chunk of the same sequence is cancelled too, asked for or not: what
        it would have started from does not exist. So is one that is submitted before that chunk was collected. Leaving
        and joining anew ends this; else the sequence goes on, once none of its chunks is in flight, behind its last
        chunk that was OK. Moves belong to the step, not to a chunk: they are made all the same.
        """

    def collect(self) -> list[StepResult]:
        """Finished steps, oldest first; never blocks.

        A step's time runs from its first op (`start_s`) to its last (`end_s`), suspended or starved as it may have been
        in between; a step that was cancelled before its first op starts when it ends. `workers` is the largest number
        that worked on it at one time. A run is collected as one, when its last step has ended.
        """

    def close(self) -> None:
        """Stop every worker; steps in flight are abandoned."""
