"""Goodput: the highest rate of requests at which enough of them meet their targets.

Owns the search: up or down by doubling until the answer is enclosed, then halving, every rate run with several seeds.
Attainment need not fall with the rate, so the answer is the highest rate that holds with no failing one below it, and
every point is kept.
Invariant: equal tries give equal searches; the answer was run itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WIDTH = 0.03
"""The search ends when the enclosing rates are so near, as a part of the higher one."""
_FACTOR = 2.0
_MOST_DOUBLINGS = 24


@dataclass(frozen=True, slots=True)
class Point:
    """One rate. Attainments are parts of the requests, one for each seed."""

    rate: float
    num_requests: int
    """Of each run."""
    is_long: bool
    """Arrivals lasted long enough for the batch to reach its size; a shorter run says too much of a rate."""
    attainments: tuple[float, ...]
    goodputs_per_s: tuple[float, ...]
    are_stable: tuple[bool, ...]
    """Whether the queue stopped growing before the arrivals ended."""

    @property
    def attainment(self) -> float:
        return sum(self.attainments) / len(self.attainments)

    @property
    def goodput_per_s(self) -> float:
        return sum(self.goodputs_per_s) / len(self.goodputs_per_s)

    @property
    def is_stable(self) -> bool:
        return sum(self.are_stable) * 2 > len(self.are_stable)

    def holds(self, attainment: float) -> bool:
        return self.is_stable and self.attainment >= attainment


@dataclass(frozen=True, slots=True)
class Search:
    """`points` in order of rate. `rate` None: none that was tried holds."""

    points: tuple[Point, ...]
    attainment: float
    rate: float | None
    is_monotone: bool
    """No rate holds above one that does not."""
    is_enclosed: bool
    """A rate that does not hold was found above `rate`."""


def search(try_rate: Callable[[float], Point], start: float, attainment: float, floor: float) -> Search:
    """Find the rate. `floor`: below it nobody is interested, so that targets that never hold end the search."""
    points: dict[float, Point] = {}

    def holds(rate: float) -> bool:
        if rate not in points:
            points[rate] = try_rate(rate)
        return points[rate].holds(attainment)

    low, high = _enclose(holds, start, floor)
    while low is not None and high is not None and high - low > WIDTH * high:
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return _judged(sorted(points.values(), key=lambda point: point.rate), attainment)


def _enclose(holds: Callable[[float], bool], start: float, floor: float) -> tuple[float | None, float | None]:
    """A rate that holds and one above that does not; None where there is none within reach."""
    rate = start
    if holds(rate):
        for _ in range(_MOST_DOUBLINGS):
            if not holds(rate * _FACTOR):
                return rate, rate * _FACTOR
            rate *= _FACTOR
        return rate, None
    while rate / _FACTOR >= floor:
        if holds(rate / _FACTOR):
            return rate / _FACTOR, rate
        rate /= _FACTOR
    return None, rate


def _judged(points: list[Point], attainment: float) -> Search:
    held = [point.holds(attainment) for point in points]
    first_failure = held.index(False) if False in held else len(held)
    return Search(
        tuple(points),
        attainment,
        points[first_failure - 1].rate if first_failure else None,
        is_monotone=not any(held[first_failure:]),
        is_enclosed=first_failure < len(held),
    )
