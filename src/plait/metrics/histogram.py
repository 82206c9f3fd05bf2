"""Histogram: how often a value fell into which bucket.

Owns counts and their sum, made for thousands of values a second: adding one is a search among a dozen bounds.
Invariant: counts never go down.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """`bounds` ascend; a value belongs to the first bound that is not below it, or to the bucket behind the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @classmethod
    def of(cls, bounds: Sequence[float], counts: Sequence[int], total: float) -> Histogram:
        """What somebody else counted."""
        found = cls(bounds)
        found.counts, found.total = list(counts), total
        return found

    @property
    def count(self) -> int:
        return sum(self.counts)

    def at_most(self, fraction: float) -> float | None:
        """The least bound below or at which so large a part of the values lies; None: there is none, or no value."""
        wanted, so_far = fraction * self.count, 0
        if wanted == 0:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=False):
            so_far += count
            if so_far >= wanted:
                return bound
        return None

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound, values up to it), the last bound being +Inf, as Prometheus wants them."""
        sums, so_far = [], 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            so_far += count
            sums.append(("+Inf" if bound is None else repr(float(bound)), float(so_far)))
        return sums
