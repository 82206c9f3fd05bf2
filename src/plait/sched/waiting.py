"""Waiting line: sequences without an executor row, in the order in which they are to be taken.

Owns the order: online before batch, a batch that is about to miss its end before others, then priority, then arrival,
then id. A preempted sequence keeps its place by
arrival, so it goes before everything younger.
Invariant: ascending by `order_key`, no sequence twice.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from plait.core.request import Sequence, ServiceClass

OrderKey = tuple[int, int, float, int]

ONLINE, URGENT, OFFLINE = range(3)

OFTEN = 2
"""Whoever was retracted so often is let in with memory for his whole answer the next time, and goes last."""


def order_key(seq: Sequence) -> OrderKey:
    """Smaller goes first. Who is preempted first among offline ones is `plait.sched.filling`'s."""
    request = seq.request
    rank = ONLINE if request.service_class is ServiceClass.ONLINE else URGENT if request.is_urgent else OFFLINE
    return (rank, request.priority, seq.arrival_s, int(seq.id))


def is_offline(seq: Sequence) -> bool:
    return seq.request.service_class is ServiceClass.BATCH


def has_reserve(seq: Sequence) -> bool:
    """Whether it is to have memory for its whole answer: it lost what it had too often."""
    return is_offline(seq) and seq.num_preemptions >= OFTEN


def num_online(running: list[Sequence]) -> int:
    """Of sequences in `order_key` order."""
    if not running or running[-1].request.service_class is ServiceClass.ONLINE:  # mostly there are no others
        return len(running)
    return bisect.bisect_left(running, URGENT, key=lambda seq: order_key(seq)[0])


class WaitingLine:
    """Sorted by `order_key`; whatever its length, adding and removing cost O(log n) comparisons and a list shift, and
    looking at the first ones costs nothing for the others.
    """

    def __init__(self) -> None:
        self._keys: list[OrderKey] = []
        self._seqs: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._seqs)

    def first(self, count: int) -> list[Sequence]:
        """The `count` sequences to be taken first, or all if there are fewer."""
        return self._seqs[:count]

    def place(self, seq: Sequence) -> int:
        """How many are to be taken before it."""
        return bisect.bisect_left(self._keys, order_key(seq))

    @property
    def num_online(self) -> int:
        if not self._keys or self._keys[-1][0] < URGENT:
            return len(self._keys)
        return bisect.bisect_left(self._keys, (URGENT,))

    def offline(self, count: int) -> list[Sequence]:
        """The `count` offline sequences to be taken first."""
        first = self.num_online
        return self._seqs[first : first + count]

    def add(self, seq: Sequence) -> None:
        key = order_key(seq)
        place = bisect.bisect_left(self._keys, key)
        self._keys.insert(place, key)
        self._seqs.insert(place, seq)

    def remove(self, seq: Sequence) -> None:
        place = bisect.bisect_left(self._keys, order_key(seq))
        if place == len(self._seqs) or self._seqs[place] is not seq:
            raise ValueError(f"sequence {seq.id} is not waiting")
        del self._keys[place], self._seqs[place]
