"""Paired: two executors as one, of which the second runs a draft model.

Owns the way of a plan to the one whose program it names, and nothing else. What it says of itself is what the target's
executor says: answers are that one's alone.
Invariant: both know only plans of their own, so ids of steps ascend in each, and results come back in order of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from plait.core.clock import Wake
from plait.core.errors import InvariantError
from plait.core.executor import ExecutorInfo
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import DRAFT_PROGRAM, STEP_PROGRAM, StepPlan, StepResult
from plait.exec.loading import LoadableExecutor, Numbers
from plait.model.cache_layout import CacheLayout
from plait.model.program import Program
from plait.weights.table import WeightTable


class PairedExecutor:
    """Implements `plait.exec.loading.LoadableExecutor`. Both are loaded already. `draft` takes steps on its first lane,
    and shares and suspensions are not for it.
    """

    def __init__(self, target: LoadableExecutor, draft: LoadableExecutor) -> None:
        self._target = target
        self._draft = draft
        self._lanes: dict[StepId, LaneId] = {}
        """Of the draft model's steps in flight, where they were planned."""

    @property
    def info(self) -> ExecutorInfo:
        return self._target.info

    @property
    def numbers(self) -> Numbers:
        return self._target.numbers

    def load(self, programs: Mapping[str, Program], weights: WeightTable, layout: CacheLayout) -> None:
        raise InvariantError("a pair of executors is loaded already")

    def submit(self, plan: StepPlan) -> None:
        if plan.program != DRAFT_PROGRAM:
            self._target.submit(plan)
            return
        self._draft.submit(replace(plan, program=STEP_PROGRAM, lane=self._draft.info.lanes[0]))
        self._lanes[plan.step] = plan.lane

    def assign(self, shares: Mapping[LaneId, tuple[int, ...]], *, may_help: bool = False) -> None:
        self._target.assign(shares, may_help=may_help)

    def suspend(self, lane: LaneId) -> None:
        self._target.suspend(lane)

    def resume(self, lane: LaneId) -> None:
        self._target.resume(lane)

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        (self._draft if step in self._lanes else self._target).cancel(step, seqs)

    def collect(self) -> list[StepResult]:
        drafted = [replace(one, lane=self._lanes.pop(one.step)) for one in self._draft.collect()]
        results = self._target.collect()
        return sorted([*results, *drafted], key=lambda one: one.step) if drafted else results

    def ready(self) -> bool:
        return self._target.ready() or self._draft.ready()

    def subscribe(self, wake: Wake) -> None:
        self._target.subscribe(wake)
        self._draft.subscribe(wake)

    def next_s(self) -> float | None:
        moments = (self._target.next_s(), self._draft.next_s())
        return min([at_s for at_s in moments if at_s is not None], default=None)

    def close(self) -> None:
        self._draft.close()
        self._target.close()
