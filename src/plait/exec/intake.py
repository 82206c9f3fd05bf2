"""Intake: the door through which plans and shares come into an executor, and results leave it.

Owns what every executor asks of every plan before it runs, whatever it runs it with: order of submission, queue depth,
size, lanes that exist, what the roster knows, and what this executor alone cannot do. The same for shares and
suspension. Runs nothing and knows no time; an executor calls it under its own lock.
Invariant: a plan that came through breaks no rule that can be checked without numbers; one that did not has changed
nothing, unless it was the roster that refused it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.core.errors import InvariantError
from plait.core.executor import ExecutorInfo
from plait.core.ids import LaneId, StepId
from plait.core.step import STEP_PROGRAM, StepPlan, StepResult, plan_fault
from plait.exec.roster import GroupSlots, Roster, Seat

PlanFault = Callable[[StepPlan], str | None]
"""What one executor finds wrong with a plan that is otherwise sound, or None."""


def no_fault(_: StepPlan) -> str | None:
    """For executors that take every sound plan."""
    return None


class Intake:
    """`own_fault` is asked last before the roster, about plans that do not contradict themselves."""

    def __init__(self, info: ExecutorInfo, groups: Sequence[GroupSlots], own_fault: PlanFault = no_fault) -> None:
        self._info = info
        self._own_fault = own_fault
        self._roster = Roster(info.max_rows, groups)
        self._num_uncollected = dict.fromkeys(info.lanes, 0)
        self._suspended: dict[LaneId, bool] = dict.fromkeys(info.lanes, False)
        self._last_step: StepId | None = None

    def submit(self, plan: StepPlan) -> tuple[Seat, ...]:
        """Take the plan over. Returns the seats of its chunks, in order."""
        fault = plan_fault(plan) or self._fault(plan) or self._own_fault(plan)
        if fault is not None:
            raise InvariantError(fault)
        seats = self._roster.apply(plan)
        self._num_uncollected[plan.lane] += 1
        self._last_step = plan.last_step
        return seats

    def collect(self, results: Sequence[StepResult]) -> None:
        """These results are being handed out, in this order."""
        for result in results:
            self._roster.settle(result)
            self._num_uncollected[result.lane] -= 1

    def check_shares(self, shares: Mapping[LaneId, tuple[int, ...]]) -> None:
        info = self._info
        if sorted(shares) != sorted(info.lanes):
            raise InvariantError(f"assign names lanes {sorted(shares)}; it must name all of {sorted(info.lanes)}")
        units = [unit for given in shares.values() for unit in given]
        if len(set(units)) != len(units) or any(not 0 <= unit < info.share_units for unit in units):
            raise InvariantError(f"shares {dict(shares)} are not disjoint sets of units 0 to {info.share_units - 1}")

    def suspend(self, lane: LaneId) -> None:
        self._check_lane(lane)
        if self._suspended[lane]:
            raise InvariantError(f"lane {lane} is suspended already; there is one level")
        self._suspended[lane] = True

    def resume(self, lane: LaneId) -> None:
        self._check_lane(lane)
        if not self._suspended[lane]:
            raise InvariantError(f"lane {lane} is resumed but was not suspended")
        self._suspended[lane] = False

    def _check_lane(self, lane: LaneId) -> None:
        if lane not in self._num_uncollected:
            raise InvariantError(f"lane {lane} does not exist; there are {list(self._info.lanes)}")

    def _fault(self, plan: StepPlan) -> str | None:
        info = self._info
        self._check_lane(plan.lane)
        if plan.program != STEP_PROGRAM:
            return f"step {plan.step} runs program {plan.program!r}; only {STEP_PROGRAM!r} is loaded"
        if self._last_step is not None and plan.step <= self._last_step:
            return f"step {plan.step} is submitted after step {self._last_step}; ids must ascend"
        if self._num_uncollected[plan.lane] >= info.queue_depth:
            waiting = f"lane {plan.lane} has {info.queue_depth} steps submitted and not collected"
            return f"{waiting}; step {plan.step} is one too many"
        if plan.num_steps > 1 and not info.runs:
            return f"step {plan.step} begins a run of {plan.num_steps} steps; this executor takes them one by one"
        num_tokens = sum([chunk.num_tokens for chunk in plan.chunks]) // plan.num_steps
        if num_tokens > info.max_step_tokens:
            return f"step {plan.step} has {num_tokens} tokens; the executor takes {info.max_step_tokens}"
        return None
