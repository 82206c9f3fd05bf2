"""Waiting line: sequences without an executor row, in the order in which they are to be taken.

Owns the order: online before batch, then priority, then arrival, then id. A preempted sequence keeps its place by
arrival, so it goes before everything younger.
Invariant: ascending by `order_key`, no sequence twice.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

from plait.core.request import Sequence, ServiceClass

OrderKey = tuple[int, int, float, int]


def order_key(seq: Sequence) -> OrderKey:
    """Smaller goes first, and larger is preempted first."""
    rank = 0 if seq.request.service_class is ServiceClass.ONLINE else 1
    return (rank, seq.request.priority, seq.arrival_s, int(seq.id))


class WaitingLine:
    """Sorted by `order_key`; whatever its length, adding and removing cost O(log n) comparisons and a list shift, and
    looking at the first ones costs nothing for the others.
    """

    def __init__(self) -> None:
        self._keys: list[OrderKey] = []
        self._seqs: list[Sequence] = []
        self._deadlines: list[tuple[float, int]] = []
        """(deadline, id) of the sequences that have one, ascending."""
        self._with_deadline: dict[int, Sequence] = {}
        """The same sequences by id."""

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._seqs)

    def first(self, count: int) -> list[Sequence]:
        """The `count` sequences to be taken first, or all if there are fewer."""
        return self._seqs[:count]

    def add(self, seq: Sequence) -> None:
        key = order_key(seq)
        place = bisect.bisect_left(self._keys, key)
        self._keys.insert(place, key)
        self._seqs.insert(place, seq)
        if seq.request.deadline_s is not None:
            bisect.insort(self._deadlines, (seq.request.deadline_s, int(seq.id)))
            self._with_deadline[int(seq.id)] = seq

    def remove(self, seq: Sequence) -> None:
        place = bisect.bisect_left(self._keys, order_key(seq))
        if place == len(self._seqs) or self._seqs[place] is not seq:
            raise ValueError(f"sequence {seq.id} is not waiting")
        del self._keys[place], self._seqs[place]
        if seq.request.deadline_s is not None:
            del self._deadlines[bisect.bisect_left(self._deadlines, (seq.request.deadline_s, int(seq.id)))]
            del self._with_deadline[int(seq.id)]

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed, the earliest deadline first."""
        late = itertools.takewhile(lambda entry: entry[0] <= now, self._deadlines)
        return [self._with_deadline[seq_id] for _, seq_id in late]

    def earliest_deadline(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None
