"""Curves: the latencies of a run as distributions to draw, and whether its queue was steady.

Owns a few numbers for each request. Invariant: a curve has at most `POINTS` points, rises, and ends at the longest.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from statistics import median

from plait.sim.report import Outcome

POINTS = 200
SLACK_S = 0.5
GROWTH = 2.0
"""A queue that grows evenly makes the last quarter wait 2.3 times as long as the second."""

Curve = tuple[tuple[float, float], ...]
"""(seconds, part of the requests that took no longer)."""


class Latencies:
    """An `OutcomeSink`."""

    def __init__(self) -> None:
        self._arrivals, self._ttft, self._tpot, self._gaps, self._e2e = (array("d") for _ in range(5))

    def __call__(self, outcome: Outcome) -> None:
        if outcome.ttft_s is None or not outcome.is_whole:
            return
        self._arrivals.append(outcome.arrival_s)
        self._ttft.append(outcome.ttft_s)
        self._e2e.append(outcome.end_s - outcome.arrival_s)
        if outcome.tpot_s is not None:
            self._tpot.append(outcome.tpot_s)
            self._gaps.append(outcome.longest_gap_s)

    def curves(self) -> dict[str, Curve]:
        named = (("TTFT", self._ttft), ("TPOT", self._tpot), ("longest gap", self._gaps), ("E2E", self._e2e))
        return {name: curve(values) for name, values in named if values}

    @property
    def is_steady(self) -> bool:
        """Those who came last waited for their first token no more than twice as long as those of the second quarter,
        or hardly longer.
        """
        order = sorted(range(len(self._arrivals)), key=self._arrivals.__getitem__)
        quarter = len(order) // 4
        if not quarter:
            return True
        early = median(self._ttft[at] for at in order[quarter : 2 * quarter])
        late = median(self._ttft[at] for at in order[-quarter:])
        return late <= max(GROWTH * early, early + SLACK_S)


def curve(values: Sequence[float]) -> Curve:
    """The empirical distribution, thinned out evenly in its height."""
    ordered = sorted(values)
    places = sorted({round(place * (len(ordered) - 1) / (POINTS - 1)) for place in range(POINTS)})
    return tuple((ordered[place], (place + 1) / len(ordered)) for place in places)
