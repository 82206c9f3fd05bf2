"""Simulated: an executor that runs nothing. Steps take the time that the cost model says, on a simulated clock.

Owns the control verbs of `plait.core.executor.Executor` over `Progress`, and refuses what the roster finds wrong.
Which tokens are "sampled" is given by the caller (`plait.exec.foretold`).
Invariant: the same calls at the same times give the same results; results come no earlier than the clock reaches
their end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.core.clock import Clock
from plait.core.errors import InvariantError
from plait.core.executor import ExecutorInfo
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import (
    Chunk,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
    StepShape,
    StepStatus,
    plan_fault,
)
from plait.cost.model import CostModel
from plait.exec.foretold import TokenSource, check_known_tokens, chunk_result
from plait.exec.progress import Lane, LaneStep, Progress
from plait.exec.roster import GroupSlots, Roster, Seat

Units = tuple[int, ...]


class SimulatedExecutor:
    """Until the first `assign`, the first lane has every share unit and the others rest.

    `quanta_per_step`: how many ops a step counts as, evenly long; verbs take effect between them. A real program has
    a few hundred.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        groups: Sequence[GroupSlots],
        clock: Clock,
        cost: CostModel,
        tokens: TokenSource,
        quanta_per_step: int = 256,
    ) -> None:
        self._info = info
        self._clock = clock
        self._cost = cost
        self._tokens = tokens
        self._roster = Roster(info.max_rows, groups)
        everything = tuple(range(info.share_units))
        lanes = {lane: Lane(everything if place == 0 else ()) for place, lane in enumerate(info.lanes)}
        self._progress = Progress(lanes, self._price_s, quanta_per_step)
        self._seats: dict[StepId, tuple[Seat, ...]] = {}
        self._num_queued = dict.fromkeys(info.lanes, 0)
        self._last_step: StepId | None = None

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: StepPlan) -> None:
        now_s = self._advance()
        self._check_plan(plan)
        seats = self._roster.apply(plan)
        for chunk, seat in zip(plan.chunks, seats, strict=True):
            check_known_tokens(chunk, seat.join, self._tokens)
        self._seats[plan.step] = seats
        self._num_queued[plan.lane] += 1
        self._last_step = plan.step
        self._progress.push(plan, now_s)

    def assign(self, shares: Mapping[LaneId, Units]) -> None:
        now_s = self._advance()
        if sorted(shares) != sorted(self._info.lanes):
            raise InvariantError(f"assign names lanes {sorted(shares)}; it must name all of {sorted(self._info.lanes)}")
        given = [unit for units in shares.values() for unit in units]
        if len(set(given)) != len(given) or any(not 0 <= unit < self._info.share_units for unit in given):
            raise InvariantError(
                f"shares {dict(shares)} are not disjoint sets of units 0 to {self._info.share_units - 1}"
            )
        self._progress.assign(dict(shares), now_s)

    def suspend(self, lane: LaneId) -> None:
        now_s = self._advance()
        if self._is_suspended(lane):
            raise InvariantError(f"lane {lane} is suspended already")
        self._progress.suspend(lane, True, now_s)

    def resume(self, lane: LaneId) -> None:
        now_s = self._advance()
        if not self._is_suspended(lane):
            raise InvariantError(f"lane {lane} is resumed but was not suspended")
        self._progress.suspend(lane, False, now_s)

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        self._progress.cancel(step, seqs, self._advance())

    def collect(self) -> list[StepResult]:
        self._advance()
        results = [self._result(step) for step in self._progress.ended]
        self._progress.ended.clear()
        for result in results:
            self._roster.settle(result)
            self._num_queued[result.lane] -= 1
        return results

    def close(self) -> None:
        self._progress = Progress({}, self._price_s, 1)
        self._seats.clear()

    def ready(self) -> bool:
        self._advance()
        return bool(self._progress.ended)

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Nothing to do: only the clock makes a step end, and the one who waits moves it."""

    def next_s(self) -> float | None:
        return self._progress.ended[0].end_s if self.ready() else self._progress.next_end_s()

    def _advance(self) -> float:
        now_s = self._clock.now()
        self._progress.advance(now_s)
        return now_s

    def _price_s(self, shape: StepShape, share: int, beside: Sequence[StepShape]) -> float:
        return self._cost.price(shape, share, beside).expected_s

    def _is_suspended(self, lane: LaneId) -> bool:
        self._check_lane(lane)
        return self._progress.wanted(lane)[1]

    def _check_lane(self, lane: LaneId) -> None:
        if lane not in self._num_queued:
            raise InvariantError(f"lane {lane} does not exist; there are {list(self._info.lanes)}")

    def _check_plan(self, plan: StepPlan) -> None:
        fault = plan_fault(plan)
        if fault:
            raise InvariantError(fault)
        self._check_lane(plan.lane)
        if self._last_step is not None and plan.step <= self._last_step:
            raise InvariantError(f"step {plan.step} is submitted after step {self._last_step}; ids must ascend")
        if self._num_queued[plan.lane] >= self._info.queue_depth:
            raise InvariantError(
                f"lane {plan.lane} has {self._info.queue_depth} steps submitted and not collected; "
                f"step {plan.step} is one too many"
            )
        num_tokens = sum(chunk.num_tokens for chunk in plan.chunks)
        if num_tokens > self._info.max_step_tokens:
            raise InvariantError(
                f"step {plan.step} has {num_tokens} tokens; the executor takes {self._info.max_step_tokens}"
            )

    def _result(self, step: LaneStep) -> StepResult:
        plan, seats = step.plan, self._seats.pop(step.plan.step)
        return StepResult(
            plan.step,
            plan.lane,
            StepStatus.CANCELLED if step.is_dead else StepStatus.COMPLETED,
            step.start_s,
            step.end_s,
            step.workers,
            tuple(self._seq_result(chunk, seat, step) for chunk, seat in zip(plan.chunks, seats, strict=True)),
        )

    def _seq_result(self, chunk: Chunk, seat: Seat, step: LaneStep) -> SeqResult:
        if chunk.seq in step.cancelled:
            return SeqResult(chunk.seq, SeqStatus.CANCELLED)
        return chunk_result(chunk, seat.join, self._tokens)
