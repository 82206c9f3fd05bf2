"""Progress: how far the steps of several lanes are, when nothing but time passes.

Owns the arithmetic of simulated lanes: a running step is a fraction of work done, growing at 1 / price(shape, share,
beside). A change of share, a suspension or a cancellation takes effect at the end of the running quantum, as on a
real device at the lane's next op; what it does to the price of other lanes is felt at once. A run of steps that nothing
disturbs is looked through once, to its end; where something does, it goes on step by step. Knows no tokens and no
clock: time comes in as an argument.
Invariant: time never goes back, and equal calls at equal times give equal ends.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import Join, StepPlan, StepShape

Units = tuple[int, ...]
PriceOf = Callable[[StepShape, int, Sequence[StepShape]], float]
"""Seconds of a step of this shape on this many share units, beside running steps of those shapes."""

RunPricesOf = Callable[[StepShape, int], Iterator[float]]
"""Seconds of step after step of a run that begins with this shape, alone on this many share units."""

DepartsOf = Callable[[int, float, float, float], tuple[float, float]]
"""(Factor on its price, seconds on top) of a step: its number, when it begins, its price, how long nothing had run."""

LEAST_PART = 0.5
"""Of what a spell makes of a step, that seconds off leave of it: they may have been measured on longer ones, and its
price may fall while it runs.
"""
# A verb that comes this close behind a quantum's start counts as coming at its start: clocks add rounding errors.
_QUANTUM_SLACK = 1e-9


class LaneStep(NamedTuple):
    """A step on its way through a lane. `end_s` is set once it has ended."""

    plan: StepPlan
    cancelled: tuple[SeqId, ...] = ()
    start_s: float = 0.0
    end_s: float = 0.0
    workers: int = 0
    ends_s: tuple[float, ...] = ()
    """Of a run: when those of its steps ended that have."""

    @property
    def num_left(self) -> int:
        """Steps that have not ended; 1 unless it is a run."""
        return self.plan.num_steps - len(self.ends_s)

    @property
    def is_dead(self) -> bool:
        """Every chunk was cancelled. A step that never had a chunk is not dead."""
        return bool(self.cancelled) and all(chunk.seq in self.cancelled for chunk in self.plan.chunks)

    def begun(self, start_s: float, workers: int) -> LaneStep:
        return LaneStep(self.plan, self.cancelled, start_s, self.end_s, workers, self.ends_s)

    def over(self, end_s: float) -> LaneStep:
        return LaneStep(self.plan, self.cancelled, self.start_s, end_s, self.workers, self.ends_s)

    def live_shape(self) -> StepShape:
        """Of the step that is due, without cancelled chunks."""
        if not self.cancelled:
            return self.plan.shape(len(self.ends_s))
        live = tuple(chunk for chunk in self.plan.chunks if chunk.seq not in self.cancelled)
        return replace(self.plan, chunks=live).shape(len(self.ends_s))

    def without(self, seqs: Sequence[SeqId]) -> LaneStep:
        fresh = tuple(c.seq for c in self.plan.chunks if c.seq in seqs and c.seq not in self.cancelled)
        return self._replace(cancelled=self.cancelled + fresh) if fresh else self


def cancel_behind(steps: Iterable[LaneStep]) -> tuple[LaneStep, ...]:
    """Steps of a lane in order: what stands behind a cancelled chunk of its sequence is cancelled too, up to where the
    sequence joins anew.
    """
    broken: dict[SeqId, None] = {}
    settled = []
    for step in steps:
        for change in step.plan.roster:
            if isinstance(change, Join):
                broken.pop(change.seq, None)
        settled.append(step.without(tuple(broken)))
        broken |= dict.fromkeys(settled[-1].cancelled)
    return tuple(settled)


@dataclass(frozen=True, slots=True)
class Change:
    """What a lane will have from `fraction` of its running step on."""

    fraction: float
    units: Units
    suspended: bool
    cancelled: tuple[SeqId, ...] = ()


@dataclass(slots=True)
class Lane:
    """`shape` is set while the first step is running or parked; `price_s` only while it is running."""

    units: Units
    suspended: bool = False
    steps: tuple[LaneStep, ...] = ()
    change: Change | None = None
    shape: StepShape | None = None
    done: float = 0.0
    """Fraction of the first step that was done at `since_s`."""
    since_s: float = 0.0
    price_s: float | None = None
    priced: StepShape | None = None
    priced_alone: int = 0
    """What `price_s` is the price of: a shape, and on how many units if nothing runs beside."""
    factor: float | None = 1.0
    more_s: float = 0.0
    """The first step's, on its prices. A factor of None is still to be asked for."""
    rest_s: float = 0.0
    """For how long nothing had run when it came."""
    ahead_s: list[float] = field(default_factory=list)
    """When the steps of a run will end, from the one at `done` and `since_s` on, if nothing disturbs it; else empty."""

    @property
    def can_run(self) -> bool:
        return bool(self.steps) and bool(self.units) and not self.suspended

    def fraction_at(self, now_s: float) -> float:
        return self.done if self.price_s is None else min(1.0, self.done + (now_s - self.since_s) / self.price_s)

    def time_of(self, fraction: float) -> float:
        return self.since_s + (fraction - self.done) * (self.price_s or 0.0)

    def next_s(self) -> float | None:
        """When the change takes effect or the step ends, whichever is first."""
        if self.price_s is None:
            return None
        if self.ahead_s:
            return self.ahead_s[-1]
        return self.time_of(1.0 if self.change is None else self.change.fraction)


class Progress:
    """The lanes of one device. `ended` collects steps in the order in which they end; the owner empties it."""

    def __init__(
        self,
        lanes: dict[LaneId, Lane],
        price: PriceOf,
        quanta_per_step: int,
        run_prices: RunPricesOf | None = None,
        departs: DepartsOf | None = None,
    ) -> None:
        """`run_prices` must say what `price` does; without it runs go step by step. `departs`: how steps depart from
        their prices, None if they do not; then there are no runs.
        """
        self._lanes = lanes
        self._price = price
        self._run_prices = run_prices
        self._departs = departs
        self._last_end_s = -math.inf
        self._quanta = quanta_per_step
        self.ended: list[LaneStep] = []
        self._due = self._next_lane()
        """As it was when something happened last: time alone does not change it."""

    def lane(self, lane: LaneId) -> Lane:
        return self._lanes[lane]

    def push(self, plan: StepPlan, now_s: float) -> None:
        lane = self._lanes[plan.lane]
        if self._departs is not None and not lane.steps:
            is_at_rest = not any(other.steps for other in self._lanes.values())
            lane.rest_s = now_s - self._last_end_s if is_at_rest else 0.0
        lane.steps = (*lane.steps, LaneStep(plan))
        self._cancel_behind(plan.lane)
        self._reprice(now_s)

    def assign(self, shares: dict[LaneId, Units], now_s: float) -> None:
        for lane_id, units in shares.items():
            self._want(self._lanes[lane_id], now_s, units=units)
        self._reprice(now_s)

    def suspend(self, lane: LaneId, suspended: bool, now_s: float) -> None:
        self._want(self._lanes[lane], now_s, suspended=suspended)
        self._reprice(now_s)

    def cancel(self, step: StepId, seqs: Sequence[SeqId], now_s: float) -> None:
        for lane_id, lane in self._lanes.items():
            for place, queued in enumerate(lane.steps):
                if queued.plan.step != step:
                    continue
                if place == 0 and lane.price_s is not None:
                    self._want(lane, now_s, cancelled=tuple(seqs))
                else:
                    steps = (*lane.steps[:place], queued.without(seqs), *lane.steps[place + 1 :])
                    lane.steps = steps
                    if place == 0 and lane.shape is not None:
                        lane.shape = steps[0].live_shape()
                    self._cancel_behind(lane_id)
        self._reprice(now_s)

    def advance(self, now_s: float) -> None:
        """Let everything happen that happens up to now."""
        while self._due is not None and self._due[1] <= now_s:
            self._pass(*self._due)

    def next_end_s(self) -> float | None:
        """When the next step or run will end if nobody intervenes; None: not before somebody does."""
        if self._due is None:
            return None
        lane_id, at_s = self._due
        lane = self._lanes[lane_id]
        if lane.change is None and (lane.ahead_s or lane.steps[0].num_left == 1):
            return at_s
        lanes = {one: replace(lane) for one, lane in self._lanes.items()}
        ahead = Progress(lanes, self._price, self._quanta, departs=self._departs)
        while not ahead.ended and ahead._due is not None:
            ahead._pass(*ahead._due)
        return ahead.ended[0].end_s if ahead.ended else None

    def quiet_from_s(self, lane_id: LaneId, now_s: float) -> float | None:
        """When a step that is pushed now would start, if that is certain as long as nobody gives another lane work or
        changes a share: nothing else is queued or about to change. None: it is not.
        """
        lane = self._lanes[lane_id]
        alone = all(other is lane or not other.steps for other in self._lanes.values())
        if not alone or lane.change is not None or lane.suspended or not lane.units or len(lane.steps) > 1:
            return None
        if not lane.steps:
            return now_s
        return lane.next_s() if lane.ahead_s or lane.steps[0].num_left == 1 else None

    def _want(
        self,
        lane: Lane,
        now_s: float,
        *,
        units: Units | None = None,
        suspended: bool | None = None,
        cancelled: tuple[SeqId, ...] = (),
    ) -> None:
        self._disturb(lane, now_s)
        old = lane.change
        if old is None:
            fraction = lane.fraction_at(now_s)
            old = Change(self._quantum_end(fraction), lane.units, lane.suspended)
        new = Change(
            old.fraction,
            old.units if units is None else units,
            old.suspended if suspended is None else suspended,
            old.cancelled + cancelled,
        )
        lane.change = new if lane.price_s is not None else None
        if lane.change is None:
            lane.units, lane.suspended = new.units, new.suspended

    def _quantum_end(self, fraction: float) -> float:
        return min(1.0, math.ceil(fraction * self._quanta - _QUANTUM_SLACK) / self._quanta)

    def _cancel_behind(self, lane_id: LaneId) -> None:
        """Ended steps count until they are collected: only then is it known where their sequences go on."""
        lane = self._lanes[lane_id]
        if not any([step.cancelled for step in lane.steps]) and not any([step.cancelled for step in self.ended]):
            return
        ended = [step for step in self.ended if step.plan.lane == lane_id]
        lane.steps = cancel_behind((*ended, *lane.steps))[len(ended) :]

    def _next_lane(self) -> tuple[LaneId, float] | None:
        """The lane with the earliest event, and when that is; ties by order of lanes."""
        first, first_s = None, math.inf
        for lane_id, lane in self._lanes.items():
            at_s = None if lane.price_s is None else lane.next_s()
            if at_s is not None and at_s < first_s:
                first, first_s = lane_id, at_s
        return None if first is None else (first, first_s)

    def _pass(self, lane_id: LaneId, at_s: float) -> None:
        """The lane reaches its next event at `at_s`."""
        lane = self._lanes[lane_id]
        change, lane.change = lane.change, None
        fraction = 1.0 if change is None else change.fraction
        lane.done, lane.since_s, lane.price_s = fraction, at_s, None
        if change is not None:
            lane.units, lane.suspended = change.units, change.suspended
        if fraction >= 1.0:
            self._end(lane, at_s)
        elif change is not None and change.cancelled:
            lane.steps = (lane.steps[0].without(change.cancelled), *lane.steps[1:])
            lane.shape = lane.steps[0].live_shape()
            self._cancel_behind(lane_id)
        self._reprice(at_s)

    def _end(self, lane: Lane, at_s: float) -> None:
        """The first step ends, or one of the run that is there does."""
        first = lane.steps[0]
        if first.plan.num_steps > 1:
            first = first._replace(ends_s=(*first.ends_s, *(lane.ahead_s or (at_s,))))
            lane.ahead_s = []
            if first.num_left and not first.is_dead:
                lane.steps = (first, *lane.steps[1:])
                lane.shape, lane.price_s, lane.done = first.live_shape(), None, 0.0
                return
        self.ended.append(first.over(at_s))
        lane.steps, lane.shape, lane.price_s, lane.done = lane.steps[1:], None, None, 0.0
        self._last_end_s, lane.rest_s = at_s, 0.0

    def _priced(self, lane: Lane, shape: StepShape, beside: Sequence[StepShape]) -> float:
        """A lane alone is asked for again and again while others come and go behind it."""
        if lane.price_s is not None and not beside and lane.priced_alone == len(lane.units) and shape is lane.priced:
            return lane.price_s
        lane.priced, lane.priced_alone = shape, 0 if beside else len(lane.units)
        price_s = self._price(shape, len(lane.units), beside)
        if self._departs is None:
            return price_s
        if lane.factor is None:
            first = lane.steps[0]
            lane.factor, lane.more_s = self._departs(first.plan.step, first.start_s, price_s, lane.rest_s)
        spell_s = lane.factor * price_s
        return spell_s + max(lane.more_s, -LEAST_PART * spell_s)

    def _look_ahead(self, lane: Lane) -> None:
        """A run that nothing disturbs: its steps follow each other to the end."""
        if self._run_prices is None or lane.shape is None or lane.ahead_s:
            return
        prices = self._run_prices(lane.shape, len(lane.units))
        next(prices)  # of the step that is there, whose price is known
        at_s = lane.time_of(1.0)
        lane.ahead_s = [at_s]
        for price_s in islice(prices, lane.steps[0].num_left - 1):
            at_s += price_s
            lane.ahead_s.append(at_s)

    def _disturb(self, lane: Lane, now_s: float) -> None:
        """Something comes between the steps of a run: it goes on step by step, from the one that is due now."""
        num_ended = bisect_right(lane.ahead_s, now_s)
        if num_ended:
            first = lane.steps[0]._replace(ends_s=(*lane.steps[0].ends_s, *lane.ahead_s[:num_ended]))
            lane.steps = (first, *lane.steps[1:])
            lane.done, lane.since_s, lane.shape = 0.0, lane.ahead_s[num_ended - 1], first.live_shape()
            lane.price_s = self._price(lane.shape, len(lane.units), ())
        lane.ahead_s = []

    def _reprice(self, at_s: float) -> None:
        """Start what can start, end what is dead, and give every lane the price of the present company."""
        busy = [lane for lane in self._lanes.values() if lane.steps or lane.price_s is not None]
        for lane in busy:
            while lane.steps and lane.steps[0].is_dead:
                if lane.shape is None:
                    lane.steps = (lane.steps[0].begun(at_s, lane.steps[0].workers), *lane.steps[1:])
                self._end(lane, at_s)
            if lane.can_run and lane.shape is None:
                lane.steps = (lane.steps[0].begun(at_s, len(lane.units)), *lane.steps[1:])
                lane.shape, lane.since_s, lane.factor = lane.steps[0].live_shape(), at_s, None
        running = [lane for lane in busy if lane.can_run]
        for lane in busy:
            price_s = None
            if lane.can_run and lane.shape is not None:
                beside = [other.shape for other in running if other is not lane and other.shape is not None]
                if lane.ahead_s:
                    if not beside:
                        continue
                    self._disturb(lane, at_s)
                price_s = self._priced(lane, lane.shape, beside)
                if lane.steps[0].workers < len(lane.units):
                    lane.steps = (lane.steps[0].begun(lane.steps[0].start_s, len(lane.units)), *lane.steps[1:])
            if price_s != lane.price_s:
                lane.done, lane.since_s, lane.price_s = lane.fraction_at(at_s), at_s, price_s
        if (
            len(running) == 1
            and not running[0].ahead_s
            and running[0].change is None
            and running[0].steps[0].num_left > 1
        ):
            self._look_ahead(running[0])
        self._due = self._next_lane()
