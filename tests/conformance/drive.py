"""Driving: traffic through an executor, while lanes are suspended, resumed, starved and fed at random moments.

Owns the order of calls on the Executor protocol, and the checks that need no numbers: a lane that must rest does rest,
no more than the queue holds is submitted, everything that was submitted comes back once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from tests.conformance.executors import Bench
from tests.conformance.traffic import Traffic

from plait.core.decision import Assign, Cancel, Decision, Resume, Submit, Suspend
from plait.core.executor import Executor
from plait.core.ids import LaneId
from plait.core.step import StepPlan, StepResult, StepStatus

MOST_TURNS = 50_000
CALM_TURNS = MOST_TURNS // 2
"""From here on nothing is cancelled: beside other work an executor may come less far than cancelling takes back."""

T = TypeVar("T")


def apply(executor: Executor, decision: Decision) -> None:
    match decision:
        case Submit(plan):
            executor.submit(plan)
        case Assign(shares, may_help):
            executor.assign(shares, may_help=may_help)
        case Suspend(lane):
            executor.suspend(lane)
        case Resume(lane):
            executor.resume(lane)
        case Cancel(step, seqs):
            executor.cancel(step, seqs)


@dataclass(slots=True)
class LaneLog:
    """What the driver knows of a lane."""

    has_units: bool
    suspended: bool = False
    num_in_flight: int = 0
    num_late: int = 0
    """Steps that were completed since the lane was told to rest. Cancelled ones end there too."""

    @property
    def rests(self) -> bool:
        return self.suspended or not self.has_units


@dataclass(slots=True)
class Drive:
    """Runs `traffic` on `bench` until it is over."""

    bench: Bench
    traffic: Traffic
    random: np.random.Generator
    cancels: bool = True
    """Without cancellations the plans do not depend on how far an executor had come: they can be replayed."""
    log: list[Decision | StepResult] = field(default_factory=list)
    """What was asked and what came back, in order."""
    lanes: dict[LaneId, LaneLog] = field(default_factory=dict)

    @property
    def plans(self) -> list[StepPlan]:
        return [entry.plan for entry in self.log if isinstance(entry, Submit)]

    @property
    def results(self) -> list[StepResult]:
        return [entry for entry in self.log if isinstance(entry, StepResult)]

    def run(self) -> None:
        info = self.bench.executor.info
        self.lanes = {lane: LaneLog(True) for lane in info.lanes}
        self._share_evenly()
        turns = 0
        while not self.traffic.is_over:
            turns += 1
            assert turns < MOST_TURNS, f"no end in sight: {self.traffic.happened}"
            lane = self._any(list(self.lanes))
            if self.lanes[lane].num_in_flight < info.queue_depth and self._chance(0.5):
                self._submit(lane)
            if self._chance(0.08):
                verbs = [self._toggle, self._reassign, self._cancel]
                self._any(verbs if turns < CALM_TURNS else verbs[:2])()
            for _ in range(int(self.random.integers(1, 30)) if self.traffic.in_flight else 0):
                self.bench.advance()
            if self._chance(0.7):
                self.collect()
        assert self.bench.executor.collect() == []

    def collect(self) -> None:
        results = self.bench.executor.collect()
        for result in results:
            log = self.lanes[result.lane]
            log.num_in_flight -= 1
            log.num_late += log.rests and result.status is not StepStatus.CANCELLED
            if self.bench.late_steps is not None:
                assert log.num_late <= self.bench.late_steps, f"lane {result.lane} moves although it has to rest"
        self.log += results
        self.traffic.take(results)

    def _ask(self, decision: Decision) -> None:
        self.log.append(decision)
        apply(self.bench.executor, decision)

    def _submit(self, lane: LaneId) -> None:
        plan = self.traffic.plan(lane)
        if plan is not None:
            self.lanes[lane].num_in_flight += 1
            self._ask(Submit(plan))

    def _toggle(self) -> None:
        lane = self._any(list(self.lanes))
        log = self.lanes[lane]
        self.collect()
        self._ask(Resume(lane) if log.suspended else Suspend(lane))
        log.suspended, log.num_late = not log.suspended, 0
        self.traffic.happened["suspends"] += log.suspended

    def _reassign(self) -> None:
        """All units to one lane, or some to each."""
        if self._chance(0.5):
            self._share_evenly()
            return
        self.collect()
        greedy = self._any(list(self.lanes))
        units = tuple(range(self.bench.executor.info.share_units))
        self._ask(Assign({lane: units if lane == greedy else () for lane in self.lanes}))
        for lane, log in self.lanes.items():
            log.has_units, log.num_late = lane == greedy, 0
        self.traffic.happened["starved lanes"] += 1

    def _share_evenly(self) -> None:
        units = range(self.bench.executor.info.share_units)
        count = len(self.lanes)
        self._ask(Assign({lane: tuple(units[at::count]) for at, lane in enumerate(self.lanes)}))
        for log in self.lanes.values():
            log.has_units, log.num_late = True, 0

    def _cancel(self) -> None:
        self.collect()
        for step, seqs in self.traffic.cancel() if self.cancels else ():
            self._ask(Cancel(step, seqs))

    def _chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def _any(self, choices: Sequence[T]) -> T:
        return choices[int(self.random.integers(len(choices)))]
