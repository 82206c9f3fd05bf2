"""Samples: distributions of measured values, in memory that does not grow with their number.

Owns `Distribution` and how it is summed up. Few values are kept as they are; of many, every one counts in a bucket that
is a thousandth wide, so that percentiles are within half a thousandth.
Invariant: how values are grouped into `add` calls changes nothing but the rounding of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_EXACT = 1 << 17
"""Entries that are kept as they are."""

_WIDTH = math.log1p(1e-3)
_ZERO = -(1 << 62)
"""The bucket of values that have no logarithm."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """`percentiles` are linear between the two nearest samples."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float


class Samples:
    """Values of 0 or more, each as often as `count` says."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int]] = []
        self._buckets: dict[int, tuple[int, float]] = {}
        """Count and sum."""
        self._longest = 0.0
        self._last_value, self._last_count = 0.0, 0
        """What is not among the entries yet: it may come again."""

    def add(self, value: float, count: int = 1) -> None:
        if not count:
            return
        if value == self._last_value:  # as for all sequences of a step
            self._last_count += count
            return
        self._close()
        self._last_value, self._last_count = value, count

    def _close(self) -> None:
        """Enter the last value with all that came of it."""
        if self._last_count:
            self._entries.append((self._last_value, self._last_count))
            self._last_count = 0
        if len(self._entries) >= MOST_EXACT:
            self._fold()

    def extend(self, values: Iterable[float], count: int = 1) -> None:
        for value in values:
            self.add(value, count)

    def distribution(self) -> Distribution | None:
        """None for no samples."""
        self._close()
        if self._buckets:
            self._fold()
            found = [(total / count, count) for _, (count, total) in sorted(self._buckets.items())]
            return _summed_up(found, self._longest)
        found = sorted((value, count) for value, count in self._entries if count > 0)
        return _summed_up(found, found[-1][0]) if found else None

    def cumulative(self, points: int = 200) -> list[tuple[float, float]]:
        """(value, part of the samples that are at most that), at most `points` of them, ascending; for plots."""
        self._close()
        if self._buckets:
            self._fold()
        entries = [(total / count, count) for _, (count, total) in sorted(self._buckets.items())]
        entries = entries or sorted(self._entries)
        total = sum(count for _, count in entries)
        steps: list[tuple[float, float]] = []
        seen = 0
        for value, count in entries:
            seen += count
            if not steps or seen / total - steps[-1][1] >= 1 / points or seen == total:
                steps.append((value, seen / total))
        return steps

    def _fold(self) -> None:
        for value, count in self._entries:
            self._longest = max(self._longest, value)
            bucket = math.floor(math.log(value) / _WIDTH) if value > 0 else _ZERO
            known, total = self._buckets.get(bucket, (0, 0.0))
            self._buckets[bucket] = (known + count, total + count * value)
        self._entries.clear()


def distribution(samples: Sequence[float]) -> Distribution | None:
    """Of samples that are at hand. None for no samples."""
    found = Samples()
    found.extend(samples)
    return found.distribution()


def _summed_up(ordered: Sequence[tuple[float, int]], longest: float) -> Distribution:
    total = sum(count for _, count in ordered)
    mean = math.fsum(value * count for value, count in ordered) / total
    p50, p90, p99 = (_percentile(ordered, total, fraction) for fraction in (0.5, 0.9, 0.99))
    return Distribution(total, mean, p50, p90, p99, longest)


def _percentile(ordered: Sequence[tuple[float, int]], total: int, fraction: float) -> float:
    place = fraction * (total - 1)
    low = int(place)
    seen, first = 0, None
    for value, count in ordered:
        seen += count
        if first is None and seen > low:
            first = value
        if first is not None and seen > min(low + 1, total - 1):
            return first + (value - first) * (place - low)
    raise AssertionError("a percentile lies among its samples")
