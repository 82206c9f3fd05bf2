"""Progress: how far the steps of several lanes are, when nothing but time passes.

Owns the arithmetic of simulated lanes: a running step is a fraction of work done, growing at 1 / price(shape, share,
beside). A change of share, a suspension or a cancellation takes effect at the end of the running quantum, as on a
real device at the lane's next op; what it does to the price of other lanes is felt at once. Knows no tokens and no
clock: time comes in as an argument.
Invariant: time never goes back, and equal calls at equal times give equal ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import Join, StepPlan, StepShape

Units = tuple[int, ...]
PriceOf = Callable[[StepShape, int, Sequence[StepShape]], float]
"""Seconds of a step of this shape on this many share units, beside running steps of those shapes."""

# A verb that comes this close behind a quantum's start counts as coming at its start: clocks add rounding errors.
_QUANTUM_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class LaneStep:
    """A step on its way through a lane. `end_s` is set once it has ended."""

    plan: StepPlan
    cancelled: tuple[SeqId, ...] = ()
    start_s: float = 0.0
    end_s: float = 0.0
    workers: int = 0

    @property
    def is_dead(self) -> bool:
        """Every chunk was cancelled. A step that never had a chunk is not dead."""
        return bool(self.plan.chunks) and all(chunk.seq in self.cancelled for chunk in self.plan.chunks)

    def live_shape(self) -> StepShape:
        if not self.cancelled:
            return self.plan.shape()
        live = tuple(chunk for chunk in self.plan.chunks if chunk.seq not in self.cancelled)
        return replace(self.plan, chunks=live).shape()

    def without(self, seqs: Sequence[SeqId]) -> LaneStep:
        fresh = tuple(c.seq for c in self.plan.chunks if c.seq in seqs and c.seq not in self.cancelled)
        return replace(self, cancelled=self.cancelled + fresh) if fresh else self


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
        return self.time_of(1.0 if self.change is None else self.change.fraction)


class Progress:
    """The lanes of one device. `ended` collects steps in the order in which they end; the owner empties it."""

    def __init__(self, lanes: dict[LaneId, Lane], price: PriceOf, quanta_per_step: int) -> None:
        self._lanes = lanes
        self._price = price
        self._quanta = quanta_per_step
        self.ended: list[LaneStep] = []

    def lane(self, lane: LaneId) -> Lane:
        return self._lanes[lane]

    def push(self, plan: StepPlan, now_s: float) -> None:
        lane = self._lanes[plan.lane]
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
        while (lane_id := self._next_lane()) is not None:
            at_s = self._lanes[lane_id].next_s()
            if at_s is None or at_s > now_s:
                return
            self._pass(lane_id, at_s)

    def next_end_s(self) -> float | None:
        """When the next step will end if nobody intervenes; None: not before somebody does."""
        ahead = Progress({lane_id: replace(lane) for lane_id, lane in self._lanes.items()}, self._price, self._quanta)
        while (lane_id := ahead._next_lane()) is not None:
            lane = ahead._lanes[lane_id]
            at_s = lane.next_s()
            if at_s is None or lane.change is None:
                return at_s
            ahead._pass(lane_id, at_s)
            if ahead.ended:
                return at_s
        return None

    def _want(
        self,
        lane: Lane,
        now_s: float,
        *,
        units: Units | None = None,
        suspended: bool | None = None,
        cancelled: tuple[SeqId, ...] = (),
    ) -> None:
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
        ended = [step for step in self.ended if step.plan.lane == lane_id]
        lane.steps = cancel_behind((*ended, *lane.steps))[len(ended) :]

    def _next_lane(self) -> LaneId | None:
        """The lane with the earliest event; ties by order of lanes."""
        moving = [
            (at_s, place, lane_id)
            for place, (lane_id, lane) in enumerate(self._lanes.items())
            if (at_s := lane.next_s()) is not None
        ]
        return min(moving)[2] if moving else None

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
        self.ended.append(replace(lane.steps[0], end_s=at_s))
        lane.steps, lane.shape, lane.price_s, lane.done = lane.steps[1:], None, None, 0.0

    def _reprice(self, at_s: float) -> None:
        """Start what can start, end what is dead, and give every lane the price of the present company."""
        for lane in self._lanes.values():
            while lane.steps and lane.steps[0].is_dead:
                if lane.shape is None:
                    lane.steps = (replace(lane.steps[0], start_s=at_s), *lane.steps[1:])
                self._end(lane, at_s)
            if lane.can_run and lane.shape is None:
                lane.steps = (replace(lane.steps[0], start_s=at_s), *lane.steps[1:])
                lane.shape, lane.since_s = lane.steps[0].live_shape(), at_s
        running = [lane for lane in self._lanes.values() if lane.can_run]
        for lane in self._lanes.values():
            price_s = None
            if lane.can_run and lane.shape is not None:
                beside = [other.shape for other in running if other is not lane and other.shape is not None]
                price_s = self._price(lane.shape, len(lane.units), beside)
                if lane.steps[0].workers < len(lane.units):
                    lane.steps = (replace(lane.steps[0], workers=len(lane.units)), *lane.steps[1:])
            if price_s != lane.price_s:
                lane.done, lane.since_s, lane.price_s = lane.fraction_at(at_s), at_s, price_s
