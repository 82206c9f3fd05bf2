"""Simulated: an executor that runs nothing. Steps take the time that the cost model says, on a simulated clock.

Owns the control verbs of `plait.core.executor.Executor` over `Progress`, and refuses what its intake finds wrong.
Which tokens are "sampled" is given by the caller (`plait.exec.foretold`).
Invariant: the same calls at the same times give the same results; results come no earlier than the clock reaches
their end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.core.clock import Clock
from plait.core.executor import ExecutorInfo
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import (
    Chunk,
    Join,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
    StepShape,
    StepStatus,
)
from plait.cost.last_run import LastRun
from plait.cost.model import CostModel
from plait.cost.scatter import Replay
from plait.exec.foretold import OneByOne, RunSource, TokenSource, check_known_tokens, chunk_result, run_result
from plait.exec.intake import Intake
from plait.exec.progress import Lane, LaneStep, Progress
from plait.exec.roster import GroupSlots
from plait.exec.trusting import TrustingIntake

Units = tuple[int, ...]
QUANTA = 256


class SimulatedExecutor:
    """Until the first `assign`, the first lane has every share unit and the others rest.

    `horizon`: before when nothing can arrive; then runs are taken, and foreseen, that end before it.

    `quanta_per_step`: how many ops a step counts as, evenly long; verbs take effect between them. A real program has
    a few hundred.

    `check_plans=False`: plans are taken as sound, as `plait.exec.trusting` does.

    `replay`: how steps depart from their prices and how late their ends are seen, as on a machine on which that was
    measured. Then no runs are foreseen: every step takes a time of its own.

    Tokens belong to sequence ids, not to texts, so equal prompts get different answers: `info` must not say
    `bit_exact`, and its fingerprint names no numerics.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        groups: Sequence[GroupSlots],
        clock: Clock,
        cost: CostModel,
        tokens: TokenSource,
        quanta_per_step: int = QUANTA,
        horizon: Callable[[], float] | None = None,
        *,
        check_plans: bool = True,
        replay: Replay | None = None,
    ) -> None:
        self._info = info
        self._clock = clock
        self._cost = cost
        self._tokens: RunSource = tokens if isinstance(tokens, RunSource) else OneByOne(tokens)
        self._intake: Intake | TrustingIntake = Intake(info, groups) if check_plans else TrustingIntake()
        everything = tuple(range(info.share_units))
        lanes = {lane: Lane(everything if place == 0 else ()) for place, lane in enumerate(info.lanes)}
        self._horizon = None if replay is not None else horizon
        self._run_prices = LastRun(cost)
        self._replay = replay
        self._num_waits = 0
        self._late_s = self._next_late_s()
        """How late the next end is seen."""
        departs = None if replay is None else replay.departs
        self._progress = Progress(lanes, self._price_s, quanta_per_step, self._run_prices, departs)
        self._joins: dict[StepId, Sequence[Join]] = {}
        """Of the chunks of every step in flight."""

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: StepPlan) -> None:
        now_s = self._advance()
        if isinstance(self._intake, TrustingIntake):
            joins: Sequence[Join] = self._intake.submit(plan)
        else:
            joins = [seat.join for seat in self._intake.submit(plan)]
            for chunk, join in zip(plan.chunks, joins, strict=True):
                check_known_tokens(chunk, join, self._tokens)
        self._joins[plan.step] = joins
        self._progress.push(plan, now_s)

    def assign(self, shares: Mapping[LaneId, Units], *, may_help: bool = False) -> None:
        """Nobody helps: what lies between two steps of an engine is in the price of the steps."""
        now_s = self._advance()
        self._intake.check_shares(shares)
        self._progress.assign(dict(shares), now_s)

    def suspend(self, lane: LaneId) -> None:
        now_s = self._advance()
        self._intake.suspend(lane)
        self._progress.suspend(lane, True, now_s)

    def resume(self, lane: LaneId) -> None:
        now_s = self._advance()
        self._intake.resume(lane)
        self._progress.suspend(lane, False, now_s)

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        self._progress.cancel(step, seqs, self._advance())

    def collect(self) -> list[StepResult]:
        self._advance()
        results = [self._result(step) for step in self._progress.ended]
        self._progress.ended.clear()
        self._intake.collect(results)
        if results:
            self._late_s = self._next_late_s()
        return results

    def close(self) -> None:
        self._progress = Progress({}, self._price_s, 1)
        self._joins.clear()

    def ready(self) -> bool:
        now_s, ended = self._advance(), self._progress.ended
        return bool(ended) and now_s >= ended[0].end_s + self._late_s

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Nothing to do: only the clock makes a step end, and the one who waits moves it."""

    def next_s(self) -> float | None:
        self._advance()
        ended = self._progress.ended
        end_s = ended[0].end_s if ended else self._progress.next_end_s()
        return None if end_s is None else end_s + self._late_s

    def num_steps(self, lane: LaneId, shape: StepShape, most: int, before_s: float) -> int:
        """As `plait.core.executor.Foresight` wants it."""
        if self._horizon is None or most < 2:
            return 1
        before_s = min(before_s, self._horizon())
        end_s = self._progress.quiet_from_s(lane, self._advance())
        if end_s is None:
            return 1
        units = len(self._progress.lane(lane).units)
        # With a step in front of it, each is planned when the last but one before it has ended.
        count = 0
        for price_s in self._run_prices(shape, units):
            count += 1
            end_s += price_s
            if count == most or end_s >= before_s:
                break
        return count

    def _advance(self) -> float:
        now_s = self._clock.now()
        self._progress.advance(now_s)
        return now_s

    def _next_late_s(self) -> float:
        if self._replay is None:
            return 0.0
        self._num_waits += 1
        return self._replay.late_s(self._num_waits)

    def _price_s(self, shape: StepShape, share: int, beside: Sequence[StepShape]) -> float:
        return self._cost.price(shape, share, beside).expected_s

    def _result(self, step: LaneStep) -> StepResult:
        plan, joins = step.plan, self._joins.pop(step.plan.step)
        return StepResult(
            plan.step,
            plan.lane,
            StepStatus.CANCELLED if step.is_dead else StepStatus.COMPLETED,
            step.start_s,
            step.end_s,
            step.workers,
            tuple(self._seq_results(step, joins)),
            step.ends_s,
        )

    def _seq_results(self, step: LaneStep, joins: Sequence[Join]) -> list[SeqResult]:
        tokens, of_chunks = self._tokens, zip(step.plan.chunks, joins, strict=True)
        if step.plan.num_steps == 1 and not step.cancelled:
            return [chunk_result(chunk, join, tokens) for chunk, join in of_chunks]
        return [self._seq_result(chunk, join, step) for chunk, join in of_chunks]

    def _seq_result(self, chunk: Chunk, join: Join, step: LaneStep) -> SeqResult:
        if chunk.seq in step.cancelled:
            return SeqResult(chunk.seq, SeqStatus.CANCELLED)
        if step.plan.num_steps > 1:
            return run_result(chunk, self._tokens)
        return chunk_result(chunk, join, self._tokens)
