"""Last run: prices of steps that follow each other, kept for who asks again.

Owns the numbers of one run, the one that was asked for last: a simulation asks for them when it foresees a run, and
again when the first step of it starts.
Invariant: the numbers are those of `plait.cost.model.run_prices`.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.step import StepShape
from plait.cost.model import CostModel, run_prices


class LastRun:
    """Over one cost model, whose prices depend on their arguments alone."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._asked: tuple[StepShape, int] | None = None
        self._known: list[float] = []
        self._further: Iterator[float] = iter(())

    def __call__(self, shape: StepShape, share: int) -> Iterator[float]:
        """As `run_prices`; each number is worked out when it is first taken."""
        if self._asked != (shape, share):
            self._asked, self._known = (shape, share), []
            self._further = run_prices(self._cost, shape, share)
        known, further = self._known, self._further
        place = 0
        while True:
            if place == len(known):
                known.append(next(further))
            yield known[place]
            place += 1
