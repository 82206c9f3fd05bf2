"""Lengths: how long answers are likely to become, judged by those that ended and those that go on.

Owns the survival curve of answers along their output limits. The short ones of a file end first, so the mean of those
that ended promises too little; an answer that still goes on says only that it is longer than what it has (Kaplan and
Meier, "Nonparametric estimation from incomplete observations", 1958, here on a grid as actuaries do).
Invariant: an expectation lies between 0 and what is left of the limit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# Fine where answers are short beside their limit: half a token of 8,192 up to the whole, four steps for every doubling.
_EDGES = (0.0, *(math.exp2(-step / 4) for step in range(56, -1, -1)))
_NUM_BINS = len(_EDGES) - 1
_GOLDEN = (math.sqrt(5) - 1) / 2

SHARED = 2.0
"""So many answers' worth is what is known of answers under other limits."""


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
        if not mean:  # every one that has ended said nothing
            return [1.0] * count
        order = sorted(range(count), key=lambda number: number * _GOLDEN % 1)
        return [shares[number] / mean for number in order]


class LengthsByLimit:
    """The same for limits of every size. Answers under a near limit, as of questions with choices, say little about
    those under a far one: each doubling of the limit has a curve of its own, and that of all counts there as much as
    `SHARED` answers would.
    """

    def __init__(self) -> None:
        self._all = Lengths()
        self._by_size: dict[int, Lengths] = {}

    def ended(self, used: float, limit_tokens: int) -> None:
        """An answer ended when it had used so much of its limit."""
        self._all.ended(used)
        self._by_size.setdefault(limit_tokens.bit_length(), Lengths()).ended(used)

    def outlooks(self, going_on: Iterable[tuple[float, int]]) -> Callable[[int], Outlook]:
        """Of an answer by its limit. `going_on`: the share that each open answer has used so far, and its limit."""
        open_by_size: dict[int, list[float]] = {}
        for used, limit in going_on:
            open_by_size.setdefault(limit.bit_length(), []).append(used)
        every = self._all.seen([used for one in open_by_size.values() for used in one])
        common = every.outlook()
        found = {}
        for size in {*self._by_size, *open_by_size}:
            own = self._by_size.get(size, _NONE).seen(open_by_size.get(size, []))
            found[size] = own.plus(every, SHARED / every.num_answers).outlook() if every.num_answers else common
        return lambda limit: found.get(limit.bit_length(), common)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of answers, bin by bin: those that stopped there and the sum of where, and those that are there
    now; those that their limit ended; and all the way that they came.
    """

    stopped: tuple[float, ...]
    sums: tuple[float, ...]
    open_in: tuple[float, ...]
    num_full: float
    exposure: float

    @property
    def num_answers(self) -> float:
        return self.num_full + sum(self.stopped) + sum(self.open_in)

    def plus(self, other: _Seen, part: float) -> _Seen:
        def added(own: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
            return tuple([one + part * more for one, more in zip(own, others, strict=True)])

        return _Seen(
            added(self.stopped, other.stopped),
            added(self.sums, other.sums),
            added(self.open_in, other.open_in),
            self.num_full + part * other.num_full,
            self.exposure + part * other.exposure,
        )

    def outlook(self) -> Outlook:
        rate = sum(self.stopped) / self.exposure if self.exposure > 0 else 0.0
        stops, means, further = [0.0] * _NUM_BINS, [0.0] * _NUM_BINS, [0.0] * (_NUM_BINS + 1)
        beyond = self.num_full
        for place in range(_NUM_BINS - 1, -1, -1):
            begin, width = _EDGES[place], _EDGES[place + 1] - _EDGES[place]
            stopped, is_open = self.stopped[place], self.open_in[place]
            # An answer that is in this bin now counts half: it came here, and nobody knows whether it leaves.
            at_risk = beyond + stopped + is_open / 2
            beyond += stopped + is_open
            # Where nobody has been yet, ends are as frequent as they were so far.
            stop = stopped / at_risk if at_risk else 1 - math.exp(-rate * width)
            mean = self.sums[place] / stopped if stopped else begin + width / 2
            stops[place], means[place] = stop, mean
            further[place] = stop * (mean - begin) + (1 - stop) * (width + further[place + 1])
        return Outlook(tuple(stops), tuple(means), tuple(further))


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

    def seen(self, going_on: Sequence[float]) -> _Seen:
        """`going_on`: shares that open answers have used so far. Costs a look at each of them and at the grid."""
        open_in = [0.0] * _NUM_BINS
        for used in going_on:
            open_in[_bin(min(used, 1.0))] += 1
        stopped = tuple(map(float, self._stopped))
        return _Seen(stopped, tuple(self._sums), tuple(open_in), float(self._num_full), self._used + sum(going_on))

    def outlook(self, going_on: Sequence[float]) -> Outlook:
        return self.seen(going_on).outlook()


def _bin(used: float) -> int:
    return min(bisect_right(_EDGES, used) - 1, _NUM_BINS - 1)


_NONE = Lengths()
