"""Pacing: how long steps of decode take now, by what they are priced at.

Owns what was watched of steps that ended: of each form a factor on its prices, and the margin within which the engine
saw their ends but for one time in a hundred; and how long all steps take by their prices, for forecasts. A machine that
others use too is slower in one second than in the next; prices that were measured once must allow for its worst seconds
at all times, what is watched only for the present.
Invariant: equal steps in equal order give equal paces; one step moves a margin by a quarter of what it began with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from plait.cost.guard import BOUNDED_PART
from plait.sched.multiplex.situation import Form, Pace

LOOKED_BACK = 5
"""Steps whose median is the factor: one that was disturbed is none, and a slow spell is noticed after three."""
_MOST_FACTOR = 4.0
STALLED_PART = 0.5
"""Of a step: one that comes later than that was held up, by whoever else has its core. No margin is kept for it: it
would leave prompts nothing, and hold hardly more, since who takes a core away does not ask for how long.
"""
FORECAST_S = 2.0
"""Of priced seconds, that forecasts look back at."""
_MOVE = 0.25
"""Of the first margin, by which one that was too small grows."""
FORMS = (Form.FUSED, Form.LANES, Form.DECODE)


@dataclass(frozen=True, slots=True)
class Promise:
    """When a step of decode should be seen to have ended, as was decided."""

    form: Form
    expected_s: float
    """Of the step."""
    seen_s: float | None
    """None: nobody waits for it beside prompts, so it says nothing about margins."""


@dataclass(slots=True)
class _Watched:
    margin_s: float
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=LOOKED_BACK))
    factor: float = 1.0


class Pacing:
    """`margin_s`: of every form, before any step was watched."""

    def __init__(self, margin_s: float) -> None:
        self._first_s = margin_s
        self._move_s = _MOVE * margin_s
        self._by_form = {form: _Watched(margin_s) for form in FORMS}
        self.slowness = 1.0
        """Seconds that steps of all kinds took lately, until their ends were seen, by their prices."""
        self._known: Mapping[Form, Pace] | None = None
        """What follows from all that was watched; None: it has not been asked for since."""

    def paces(self) -> Mapping[Form, Pace]:
        if self._known is None:
            self._known = {form: Pace(one.factor, one.margin_s) for form, one in self._by_form.items()}
        return self._known

    def factor(self, form: Form) -> float:
        return self._by_form[form].factor

    def promise(self, form: Form, begin_s: float | None, expected_s: float) -> Promise:
        """Of a step that was to begin at a moment; None: whenever it does."""
        return Promise(form, expected_s, None if begin_s is None else begin_s + self.factor(form) * expected_s)

    def went(self, ratio: float, price_s: float) -> None:
        """A step, of whatever kind, took so many times its price."""
        kept = min(_MOST_FACTOR, max(1.0 / _MOST_FACTOR, ratio))
        self.slowness += price_s / (price_s + FORECAST_S) * (kept - self.slowness)

    def ended(self, promise: Promise, seconds: float, now: float) -> None:
        """A step took so many seconds on the device, and its end is seen now."""
        self.ran(promise.form, seconds, promise.expected_s)
        if promise.seen_s is not None and now - promise.seen_s <= STALLED_PART * promise.expected_s:
            self.seen(promise.form, now - promise.seen_s)

    def ran(self, form: Form, seconds: float, expected_s: float) -> None:
        """A step of decode took so many seconds on the device, by its price so many."""
        one = self._by_form[form]
        one.ratios.append(min(_MOST_FACTOR, max(1.0 / _MOST_FACTOR, seconds / expected_s)))
        one.factor = median(one.ratios)
        self._known = None

    def seen(self, form: Form, late_s: float) -> None:
        """The engine saw a step's end so much later than the form's factor had said when it was decided. Margins grow
        and shrink so that one in a hundred is later.
        """
        one, less_s = self._by_form[form], (1.0 - BOUNDED_PART) * self._move_s
        one.margin_s = max(
            0.0, one.margin_s + BOUNDED_PART * self._move_s if late_s > one.margin_s else one.margin_s - less_s
        )
        for other in self._by_form.values():
            if other is not one:
                # What was left for being noisy is tried again after a while.
                other.margin_s = max(min(other.margin_s, self._first_s), other.margin_s - less_s)
        self._known = None
