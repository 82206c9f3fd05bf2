"""Step times: how long a step of so many rows takes here and now, as steps that were made anyway show it.

Owns the running means, by number of rows, and what is said of numbers that were never seen. Steps with prompts in them
are not for it: their rows cost otherwise.
Invariant: more rows never take less time: means that say so were disturbed, and are taken together (isotonic regression
by pooling adjacent violators, Ayer et al., 1955). One stray step moves none by much.
"""

from __future__ import annotations

from bisect import bisect_left, insort

_SHARE = 0.15
"""Of a mean, what the newest step is of it, once there have been a few."""

_MOST_WEIGHT = 8
"""Steps that a mean counts for beside others."""

_MOST_CHANGE = 1.5
"""A step counts as at most so many times the mean, and as at least one part in so many: another process may have had
the processor.
"""

_ROW_SHARE = 0.2
"""Of a step of one row, what a further row is taken to cost where nobody has seen it: five free rows on memory-bound
machines, more than most have.
"""


class StepTimes:
    """Seconds by rows."""

    __slots__ = ("_counts", "_means", "_rows", "_smooth")

    def __init__(self) -> None:
        self._rows: list[int] = []
        """Numbers that were seen, ascending."""
        self._means: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._smooth: list[float] = []
        """Of each of `_rows`, what the means come to together; empty: something was seen since."""

    @property
    def is_empty(self) -> bool:
        return not self._rows

    @property
    def most_rows(self) -> int:
        """Of the steps that were seen."""
        return self._rows[-1] if self._rows else 0

    def note(self, num_rows: int, seconds: float) -> None:
        self._smooth = []
        if num_rows not in self._means:
            insort(self._rows, num_rows)
            self._means[num_rows], self._counts[num_rows] = seconds, 1
            return
        mean, count = self._means[num_rows], self._counts[num_rows] + 1
        self._counts[num_rows] = count
        if count > 2:
            seconds = min(max(seconds, mean / _MOST_CHANGE), mean * _MOST_CHANGE)
        self._means[num_rows] = mean + (seconds - mean) * max(_SHARE, 1.0 / count)

    def seconds(self, num_rows: int) -> float:
        """Of a step of so many rows. Something was seen."""
        if not self._smooth:
            self._smooth = self._pooled()
        rows, times = self._rows, self._smooth
        place = bisect_left(rows, num_rows)
        if place == len(rows):
            return self._beyond(num_rows)
        above = rows[place]
        if above == num_rows:
            return times[place]
        if place == 0:
            return times[0] * (1.0 + _ROW_SHARE * (num_rows - 1)) / (1.0 + _ROW_SHARE * (above - 1))
        below = rows[place - 1]
        part = (num_rows - below) / (above - below)
        return times[place - 1] * (1.0 - part) + times[place] * part

    def _pooled(self) -> list[float]:
        pools: list[tuple[float, int, int]] = []  # mean, weight, and how many of `_rows` it stands for
        for rows in self._rows:
            mean, weight, size = self._means[rows], min(self._counts[rows], _MOST_WEIGHT), 1
            while pools and pools[-1][0] >= mean:
                before, its_weight, its_size = pools.pop()
                mean = (before * its_weight + mean * weight) / (its_weight + weight)
                weight, size = weight + its_weight, size + its_size
            pools.append((mean, weight, size))
        return [mean for mean, _, size in pools for _ in range(size)]

    def _beyond(self, num_rows: int) -> float:
        """As if every further row cost what the last ones did, or what is taken for granted if that is more."""
        rows, times = self._rows, self._smooth
        last = rows[-1]
        a_row = times[-1] * _ROW_SHARE / (1.0 + _ROW_SHARE * (last - 1))
        if len(rows) > 1:
            a_row = max(a_row, (times[-1] - times[-2]) / (last - rows[-2]))
        return times[-1] + a_row * (num_rows - last)
