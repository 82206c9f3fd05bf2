"""Step times: how long a step of so many rows takes here and now, as steps that were made anyway show it.

Owns the running means, by number of rows, and what is said of numbers that were never seen. Steps with prompts in them
are not for it: their rows cost otherwise.
Invariant: between two numbers that were seen a time lies between theirs, and one stray step moves none by much.
"""

from __future__ import annotations

from bisect import bisect_left, insort

_SHARE = 0.15
"""Of a mean, what the newest step is of it, once there have been a few."""

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

    __slots__ = ("_counts", "_means", "_rows")

    def __init__(self) -> None:
        self._rows: list[int] = []
        """Numbers that were seen, ascending."""
        self._means: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def note(self, num_rows: int, seconds: float) -> None:
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
        rows, means = self._rows, self._means
        place = bisect_left(rows, num_rows)
        if place == len(rows):
            return self._beyond(num_rows)
        above = rows[place]
        if above == num_rows:
            return means[num_rows]
        if place == 0:
            return means[above] * (1.0 + _ROW_SHARE * (num_rows - 1)) / (1.0 + _ROW_SHARE * (above - 1))
        below = rows[place - 1]
        part = (num_rows - below) / (above - below)
        return means[below] * (1.0 - part) + means[above] * part

    def _beyond(self, num_rows: int) -> float:
        """As if every further row cost what the last ones did, or what is taken for granted if that is more."""
        rows, means = self._rows, self._means
        last = rows[-1]
        a_row = means[last] * _ROW_SHARE / (1.0 + _ROW_SHARE * (last - 1))
        if len(rows) > 1:
            before = rows[-2]
            a_row = max(a_row, (means[last] - means[before]) / (last - before))
        return means[last] + a_row * (num_rows - last)
