"""Lengths: how long answers are likely to become, judged by those that ended and those that go on.

Owns the survival curve of answers along their output limits. The short ones of a file end first, so the mean of those
that ended promises too little; an answer that still goes on says only that it is longer than what it has (Kaplan and
Meier, "Nonparametric estimation from incomplete observations", 1958, here on a grid as actuaries do).
Invariant: an expectation lies between 0 and what is left of the limit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

# Fine where answers are short beside their limit: half a token of 8,192 up to the whole, four steps for every doubling.
_EDGES = (0.0, *(math.exp2(-step / 4) for step in range(56, -1, -1)))
_NUM_BINS = len(_EDGES) - 1
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Outlook:
    """What answers that have used some share of their limit are still expected to use."""

    stops: tuple[float, ...]
    """By bin: the chance to end in it, of those that come to it."""
    means: tuple[float, ...]
    """By bin: where those end that end in it."""
    further: tuple[float, ...]
    """From each edge on, the last one being the limit."""

    def further_share(self, used: float) -> float:
        if used >= 1.0:
            return 0.0
        place = _bin(used)
        stop, end = self.stops[place], _EDGES[place + 1]
        return stop * max(self.means[place] - used, 0.0) + (1 - stop) * (end - used + self.further[place + 1])

    def spread(self, count: int) -> list[float]:
        """Lengths of so many answers as they may turn out, beside their mean: evenly spaced along the curve, in an
        order that mixes short and long ones.
        """
        shares, place, left = [], 0, 1.0
        for number in range(count):
            # So large a part of all answers is longer.
            longer = 1 - (number + 0.5) / count
            while place < _NUM_BINS and left * (1 - self.stops[place]) > longer:
                left *= 1 - self.stops[place]
                place += 1
            shares.append(self.means[place] if place < _NUM_BINS else 1.0)
        mean = sum(shares) / max(count, 1)
        order = sorted(range(count), key=lambda number: number * _GOLDEN % 1)
        return [shares[number] / mean for number in order]


class Lengths:
    """Answers that ended, by the share of their limit that they used."""

    def __init__(self) -> None:
        self._stopped = [0] * _NUM_BINS
        self._sums = [0.0] * _NUM_BINS
        self._num_full = 0
        """Those that their limit ended."""
        self._used = 0.0

    def ended(self, used: float) -> None:
        """An answer ended when it had used so much of its limit."""
        self._used += min(used, 1.0)
        if used >= 1.0:
            self._num_full += 1
        else:
            place = _bin(used)
            self._stopped[place] += 1
            self._sums[place] += used

    def outlook(self, going_on: Sequence[float]) -> Outlook:
        """`going_on`: shares that open answers have used so far. Costs a look at each of them and at the grid."""
        open_in = [0] * _NUM_BINS
        for used in going_on:
            open_in[_bin(min(used, 1.0))] += 1
        exposure = self._used + sum(going_on)
        rate = sum(self._stopped) / exposure if exposure > 0 else 0.0
        stops, means, further = [0.0] * _NUM_BINS, [0.0] * _NUM_BINS, [0.0] * (_NUM_BINS + 1)
        beyond = float(self._num_full)
        for place in range(_NUM_BINS - 1, -1, -1):
            begin, width = _EDGES[place], _EDGES[place + 1] - _EDGES[place]
            # An answer that is in this bin now counts half: it came here, and nobody knows whether it leaves.
            at_risk = beyond + self._stopped[place] + open_in[place] / 2
            beyond += self._stopped[place] + open_in[place]
            # Where nobody has been yet, ends are as frequent as they were so far.
            stop = self._stopped[place] / at_risk if at_risk else 1 - math.exp(-rate * width)
            mean = self._sums[place] / self._stopped[place] if self._stopped[place] else begin + width / 2
            stops[place], means[place] = stop, mean
            further[place] = stop * (mean - begin) + (1 - stop) * (width + further[place + 1])
        return Outlook(tuple(stops), tuple(means), tuple(further))


def _bin(used: float) -> int:
    return min(bisect_right(_EDGES, used) - 1, _NUM_BINS - 1)
