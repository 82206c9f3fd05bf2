"""Step times: how long a step of so many rows takes here and now, as steps that were made anyway show it.

Owns the running means, by number of rows, and what is said of numbers that were never seen. Steps with prompts in them
are not for it: their rows cost otherwise.
Invariant: more rows never take less time: means that say so were disturbed, and are taken together (isotonic regression
by pooling adjacent violators, Ayer et al., 1955). One stray step moves none by much, and none is believed for ever.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

FORGOTTEN_AFTER = 64
"""Steps in which a number of rows did not come, for each time that it ever came, up to `_MOST_WEIGHT` times: then its
mean is no longer believed. It may have been disturbed, and be the very reason why nobody makes such a step again.
"""

_SHARE = 0.15
"""Of a mean, what the newest step is of it, once there have been a few."""

_MOST_WEIGHT = 8
"""Steps that a mean counts for beside others."""

_MOST_CHANGE = 1.5
"""A step counts as at most so many times the mean, and as at least one part in so many: another process may have had
the processor.
"""

_MOST_FIRST = 2.0
"""Times what is said of a number of rows that was never seen, which the first such step counts as at most."""

_ROW_SHARE = 0.2
"""Of a step of one row, what a further row is taken to cost where nobody has seen it: five free rows on memory-bound
machines, more than most have.
"""

_POOLED_EVERY = 8
"""Steps: a mean of many moves little in one."""


@dataclass(slots=True)
class _Mean:
    seconds: float
    num_steps: int
    """That went into it."""
    newest: int
    """Which of all noted steps was the last."""


class StepTimes:
    """Seconds by rows."""

    __slots__ = ("_means", "_num_noted", "_num_seen", "_rows", "_said", "_smooth")

    def __init__(self) -> None:
        self._rows: list[int] = []
        """Numbers that were seen, ascending."""
        self._means: dict[int, _Mean] = {}
        self._num_seen: dict[int, int] = {}
        """Steps by rows, those of forgotten means too."""
        self._num_noted = 0
        self._smooth: list[float] = []
        """Of each of `_rows`, what the means come to together; empty: they have moved since."""
        self._said: dict[int, float] = {}
        """What was said since then, by rows: a choice of a depth asks for many."""

    @property
    def is_empty(self) -> bool:
        return not self._rows

    @property
    def most_rows(self) -> int:
        """Of the steps that were seen."""
        return self._rows[-1] if self._rows else 0

    def note(self, num_rows: int, seconds: float) -> None:
        self._num_noted += 1
        self._num_seen[num_rows] = self._num_seen.get(num_rows, 0) + 1
        mean = self._means.get(num_rows)
        if mean is None:
            if self._rows:
                seconds = min(seconds, _MOST_FIRST * self.seconds(num_rows))
            insort(self._rows, num_rows)
            self._means[num_rows] = _Mean(seconds, 1, self._num_noted)
            self._moved()
        else:
            mean.num_steps += 1
            mean.newest = self._num_noted
            if mean.num_steps > 2:
                seconds = min(max(seconds, mean.seconds / _MOST_CHANGE), mean.seconds * _MOST_CHANGE)
            mean.seconds += (seconds - mean.seconds) * max(_SHARE, 1.0 / mean.num_steps)
            if mean.num_steps <= _MOST_WEIGHT or self._num_noted % _POOLED_EVERY == 0:
                self._moved()
        if self._num_noted % FORGOTTEN_AFTER == 0:
            self._forget()

    def _forget(self) -> None:
        for rows, mean in list(self._means.items()):
            if self._num_noted - mean.newest > FORGOTTEN_AFTER * min(self._num_seen[rows], _MOST_WEIGHT):
                del self._means[rows]
                self._rows.remove(rows)
                self._moved()

    def _moved(self) -> None:
        self._smooth, self._said = [], {}

    def seconds(self, num_rows: int) -> float:
        """Of a step of so many rows. Something was seen."""
        said = self._said.get(num_rows)
        if said is None:
            said = self._said[num_rows] = self._seconds(num_rows)
        return said

    def _seconds(self, num_rows: int) -> float:
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
            of_rows = self._means[rows]
            mean, weight, size = of_rows.seconds, min(of_rows.num_steps, _MOST_WEIGHT), 1
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
