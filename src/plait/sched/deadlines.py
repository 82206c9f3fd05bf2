"""Deadlines: when the answers of admitted sequences become worthless.

Owns the order of deadlines of whoever waits or runs and has one. Ends nobody.
Invariant: ascending by (deadline, id), every sequence once.
"""

from __future__ import annotations

import bisect
import itertools

from plait.core.ids import SeqId
from plait.core.request import Sequence


class Deadlines:
    """Adding and removing cost O(log n) comparisons and a list shift; a sequence without a deadline costs nothing."""

    def __init__(self) -> None:
        self._order: list[tuple[float, SeqId]] = []
        self._sequences: dict[SeqId, Sequence] = {}

    def add(self, seq: Sequence) -> None:
        if seq.request.deadline_s is not None:
            bisect.insort(self._order, (seq.request.deadline_s, seq.id))
            self._sequences[seq.id] = seq

    def remove(self, seq: Sequence) -> None:
        if seq.request.deadline_s is not None:
            del self._order[bisect.bisect_left(self._order, (seq.request.deadline_s, seq.id))]
            del self._sequences[seq.id]

    def passed(self, now: float) -> list[tuple[Sequence, float]]:
        """Whose deadline has passed and by how many seconds, the earliest deadline first."""
        if not self._order:
            return []
        late = itertools.takewhile(lambda entry: entry[0] <= now, self._order)
        return [(self._sequences[seq_id], now - deadline_s) for deadline_s, seq_id in late]

    def earliest(self) -> float | None:
        return self._order[0][0] if self._order else None
