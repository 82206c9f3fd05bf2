"""Visibility: which keys of its own sequence a row may look at.

Owns the four rules (causal, window, chunk, all) and their counts in closed form, so that 100,000 rows are counted as
fast as one. Knows nothing about draft trees: a tree row sees no more than its slot would, and is priced as that.
Invariant: `first(slot) <= slot`, and `count(slot) == slot + 1 - first(slot)` for every rule but ALL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from plait.core.errors import InvariantError


class Reach(StrEnum):
    CAUSAL = "causal"
    """Slots 0 to s."""
    WINDOW = "window"
    """The last `size` slots up to and including s."""
    CHUNK = "chunk"
    """Slots of s's own stretch of `size` slots, up to and including s."""
    ALL = "all"
    """Every key there is: encoder rows among themselves, or cross attention."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """What the row at slot s sees. `size` is in tokens; 0 for CAUSAL and ALL."""

    reach: Reach
    size: int = 0

    def __post_init__(self) -> None:
        sized = self.reach in (Reach.WINDOW, Reach.CHUNK)
        if sized != (self.size > 0):
            raise InvariantError(f"visibility {self.reach} with size {self.size} tokens")

    def first(self, slot: int) -> int:
        """The lowest slot that the row at `slot` sees."""
        match self.reach:
            case Reach.WINDOW:
                return max(0, slot - self.size + 1)
            case Reach.CHUNK:
                return slot - slot % self.size
            case _:
                return 0

    def count(self, slot: int) -> int:
        """Keys that the row at `slot` sees. Not defined for ALL, whose keys are not the row's own past."""
        return slot + 1 - self.first(slot)

    def total(self, start: int, num_rows: int, num_keys: int = 0) -> int:
        """Sum of the keys seen by rows [start, start + num_rows). `num_keys` is how many there are for ALL."""
        match self.reach:
            case Reach.WINDOW:
                growing = max(0, min(num_rows, self.size - start))
                return growing * start + _triangle(growing) + (num_rows - growing) * self.size
            case Reach.CHUNK:
                return _chunk_total(start + num_rows, self.size) - _chunk_total(start, self.size)
            case Reach.ALL:
                return num_rows * num_keys
            case _:
                return num_rows * start + _triangle(num_rows)

    def total_at(self, slots: Sequence[int]) -> int:
        """Sum of `count` over single rows of many sequences. Not defined for ALL."""
        match self.reach:
            case Reach.WINDOW:
                return sum(min(self.size, slot + 1) for slot in slots)
            case Reach.CHUNK:
                return sum(slot % self.size + 1 for slot in slots)
            case _:
                return sum(slots) + len(slots)

    def totals_of_run(self, slots: Sequence[int]) -> Iterator[int]:
        """`total_at` of the rows at these slots, then of those one further, and so on without end."""
        if self.reach is Reach.CAUSAL:
            return count(self.total_at(slots), len(slots))
        return (self.total_at([slot + later for slot in slots]) for later in count())

    def union(self, start: int, num_rows: int, num_keys: int = 0) -> int:
        """Distinct keys that rows [start, start + num_rows) see together. `num_keys` is how many there are for ALL."""
        if num_rows == 0:
            return 0
        if self.reach is Reach.ALL:
            return num_keys
        return start + num_rows - self.first(start)


CAUSAL = Visibility(Reach.CAUSAL)
ALL = Visibility(Reach.ALL)


def window(size: int) -> Visibility:
    return Visibility(Reach.WINDOW, size)


def chunk(size: int) -> Visibility:
    return Visibility(Reach.CHUNK, size)


def _triangle(count: int) -> int:
    """1 + 2 + ... + count."""
    return count * (count + 1) // 2


def _chunk_total(end: int, size: int) -> int:
    """Keys seen by rows [0, end) when every stretch of `size` slots starts anew."""
    whole, rest = divmod(end, size)
    return whole * _triangle(size) + _triangle(rest)
