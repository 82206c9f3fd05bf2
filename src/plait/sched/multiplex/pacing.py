"""Pacing: how long steps take now, by what they are priced at.

Owns what was watched of steps that ended: how long those of each form usually take by their prices, how long all of
them take now by what is usual, and the margin within which the engine saw their ends but for one time in a hundred. A
machine that others use too is slower in one second than in the next; prices that were measured once must allow for its
worst seconds at all times, what is watched only for the present.
Invariant: equal steps in equal order give equal paces; one step moves a margin by a quarter of what it began with.

    factor of a form = its usual ratio * (median of the last steps' ratios, each by what is usual in its form)

So a slow second that was noticed under one form holds for all of them, and is forgotten under all of them when it is
over; what is wrong with the prices of one form stays with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from plait.cost.guard import BOUNDED_PART
from plait.sched.multiplex.situation import Form, Pace

LOOKED_BACK = 5
"""Steps whose median says how the machine is: one that was disturbed is none, and a slow spell is noticed after three.
"""
USUAL_STEPS = 200
"""Of a form, whose mean is usual; the first few count as if there had been some before that kept to their prices."""
BEFORE = 10
FORGOTTEN = 5e-4
"""Of what is usual in a form, with each step of another: a form that was left for its prices is tried again."""
_MOST_FACTOR = 4.0
STALLED_PART = 0.5
"""Of a step: one that comes later than that was held up, by whoever else has its core. No margin is kept for it: it
would leave prompts nothing, and hold hardly more, since who takes a core away does not ask for how long.
"""
_STALL_RATE = 5e-3
LEAST_LATE = 0.25 * (1.0 - BOUNDED_PART)
"""Of steps that were not held up, that may be late however many were."""
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
    usual: float = 1.0
    count: int = BEFORE


class Pacing:
    """`margin_s`: of every form, before any step was watched."""

    def __init__(self, margin_s: float) -> None:
        self._first_s = margin_s
        self._move_s = _MOVE * margin_s
        self._by_form = {form: _Watched(margin_s) for form in FORMS}
        self._lately: deque[float] = deque(maxlen=LOOKED_BACK)
        """By what is usual in their forms."""
        self._now = 1.0
        self._stalled = 0.0
        """Part of steps that were held up."""
        self._prompts = 1.0
        """What prompts by themselves usually take by their prices."""
        self.slowness = 1.0
        """Seconds that steps of all kinds took lately, until their ends were seen, by their prices."""
        self._known: Mapping[Form, Pace] | None = None
        """What follows from all that was watched; None: it has not been asked for since."""

    def paces(self) -> Mapping[Form, Pace]:
        if self._known is None:
            now = self._now
            found = {form: Pace(one.usual * now, one.margin_s, one.usual) for form, one in self._by_form.items()}
            found[Form.PREFILL] = Pace(self._prompts * now, 0.0, self._prompts)
            self._known = found
        return self._known

    def factor(self, form: Form) -> float:
        return self._by_form[form].usual * self._now

    def promise(self, form: Form, begin_s: float | None, expected_s: float) -> Promise:
        """Of a step that was to begin at a moment; None: whenever it does."""
        return Promise(form, expected_s, None if begin_s is None else begin_s + self.factor(form) * expected_s)

    def went(self, ratio: float, price_s: float, *, is_prompts: bool = False) -> None:
        """A step, of whatever kind, took so many times its price. `is_prompts`: it was one of prompts by themselves,
        in turns or side by side.
        """
        kept, part = _kept(ratio), price_s / (price_s + FORECAST_S)
        self.slowness += part * (kept - self.slowness)
        if is_prompts:
            self._prompts += part * (kept - self._prompts)
            self._known = None

    def ended(self, promise: Promise, seconds: float, now: float) -> None:
        """A step took so many seconds on the device, and its end is seen now."""
        self.ran(promise.form, seconds, promise.expected_s)
        if promise.seen_s is None:
            return
        is_stalled = now - promise.seen_s > STALLED_PART * promise.expected_s
        self._stalled += _STALL_RATE * (is_stalled - self._stalled)
        if not is_stalled:
            self.seen(promise.form, now - promise.seen_s)

    def ran(self, form: Form, seconds: float, expected_s: float) -> None:
        """A step of decode took so many seconds on the device, by its price so many."""
        ratio, one = _kept(seconds / expected_s), self._by_form[form]
        self._lately.append(ratio / one.usual)
        self._now = median(self._lately)
        one.count = min(USUAL_STEPS, one.count + 1)
        # What held one step up is not usual, and is no more than a slow one.
        one.usual += (min(ratio, (1.0 + STALLED_PART) * one.usual * self._now) - one.usual) / one.count
        for other in self._by_form.values():
            if other is not one:
                other.usual += FORGOTTEN * (1.0 - other.usual)
        self._known = None

    def seen(self, form: Form, late_s: float) -> None:
        """The engine saw a step's end so much later than the form's factor had said when it was decided. Margins grow
        and shrink so that of a hundred steps one is later, those included that were held up.
        """
        late = max(LEAST_LATE, 1.0 - BOUNDED_PART - self._stalled)
        one, less_s = self._by_form[form], late * self._move_s
        one.margin_s = max(
            0.0, one.margin_s + (1.0 - late) * self._move_s if late_s > one.margin_s else one.margin_s - less_s
        )
        for other in self._by_form.values():
            if other is not one:
                # What was left for being noisy is tried again after a while.
                other.margin_s = max(min(other.margin_s, self._first_s), other.margin_s - less_s)
        self._known = None


def _kept(ratio: float) -> float:
    return min(_MOST_FACTOR, max(1.0 / _MOST_FACTOR, ratio))
