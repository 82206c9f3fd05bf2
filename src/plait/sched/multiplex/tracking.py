"""Tracking: how far the steps in flight should be, and who said what when.

Owns estimates between events: executors say when a step has ended, not how far it is. They are prices integrated over
time, as the simulated executor does it, so that a decision knows how much of a prefill is left.
Invariant: what is left of a step never grows, and is 1 exactly until the step has had units for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.ids import LaneId, SeqId
from plait.core.step import StepPlan, StepShape
from plait.cost.model import CostModel
from plait.sched.multiplex.pacing import Promise
from plait.sched.multiplex.situation import Choice, Prompt

LEAST_LEFT = 1e-6
"""Of a step that should have ended and has not been collected."""


@dataclass(slots=True)
class Flight:
    """A step on its way."""

    plan: StepPlan
    shape: StepShape
    prompts: tuple[Prompt, ...] = ()
    """Whose prompts it computes, on a lane of prompts."""
    promise: Promise | None = None
    choice: Choice | None = None
    """Of a step behind another: what holds once it runs."""


@dataclass(slots=True)
class _Step:
    shape: StepShape
    left: float
    since_s: float
    price_s: float | None
    """Of the whole step in the present company; None: it rests."""
    gone: float = 0.0
    """Seconds that it had so far, by its price in each of them: 1 at its end if it keeps to it."""


class Tracker:
    """Of one device. Units say how many a lane has; none: it rests."""

    def __init__(self, cost: CostModel, units: Mapping[LaneId, int]) -> None:
        self._cost = cost
        self._units = dict(units)
        self._steps: dict[LaneId, _Step] = {}
        self._is_priced = True
        """Whether prices are those of the present company. Most changes are followed by another before anybody asks."""

    def begin(self, lane: LaneId, shape: StepShape, now: float) -> None:
        self._settle(now)
        self._steps[lane] = _Step(shape, 1.0, now, None)
        self._is_priced = False

    def end(self, lane: LaneId, now: float) -> float:
        """How long it took by its price."""
        self._settle(now)
        ended = self._steps.pop(lane)
        self._is_priced = False
        return ended.gone

    def assign(self, units: Mapping[LaneId, int], now: float) -> None:
        self._settle(now)
        self._units = dict(units)
        self._is_priced = False

    def left(self, lane: LaneId, now: float) -> float:
        """Part of the lane's step that is not done."""
        self._price()
        step = self._steps[lane]
        if step.price_s is None:
            return step.left
        return max(LEAST_LEFT, step.left - (now - step.since_s) / step.price_s)

    def whole_s(self, lane: LaneId) -> float:
        """What the lane's step would take in the present company; 0 while it rests."""
        self._price()
        return self._steps[lane].price_s or 0.0

    def _settle(self, now: float) -> None:
        if all([step.since_s == now for step in self._steps.values()]):
            return
        self._price()
        for lane, step in self._steps.items():
            if step.price_s is not None:
                step.gone += (now - step.since_s) / step.price_s
            step.left, step.since_s = self.left(lane, now), now

    def _price(self) -> None:
        if self._is_priced:
            return
        self._is_priced = True
        running = {lane: step for lane, step in self._steps.items() if self._units[lane]}
        for lane, step in self._steps.items():
            beside = tuple(other.shape for one, other in running.items() if one != lane)
            step.price_s = (
                self._cost.price(step.shape, self._units[lane], beside).expected_s if lane in running else None
            )


@dataclass(slots=True)
class Said:
    """What a sequence has said so far: its first token at `first_s`, its last at `last_s`, `count` after the first."""

    first_s: float
    last_s: float
    count: int = 0


class Speech:
    """Who said what when."""

    def __init__(self) -> None:
        self._said: dict[SeqId, Said] = {}

    def of(self, seq: SeqId) -> Said | None:
        return self._said.get(seq)

    def tokens(self, seq: SeqId, count: int, now: float) -> None:
        said = self._said.get(seq)
        if said is None:
            self._said[seq] = Said(now, now, count - 1)
        else:
            said.last_s, said.count = now, said.count + count

    def forget(self, seq: SeqId) -> None:
        self._said.pop(seq, None)
