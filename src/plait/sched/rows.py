"""Rows: the executor's rows, and who has still to be told that a sequence left.

Owns which rows are free, on which lane, and the leaves that the next step of a lane brings.
Invariant: every row is taken, free, or was left on a lane. Steps of one lane run in order, so that lane may use a left
row at once; another lane may only when the step that tells the leave was collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from plait.core.errors import InvariantError
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import Leave


@dataclass(slots=True)
class _Left:
    lane: LaneId
    step: StepId | None = None
    """The step that tells the leave; None: no step yet."""


class Rows:
    """Rows 0 to `count` - 1. The one that has been free longest is taken first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = deque(range(count))
        self._left: dict[int, _Left] = {}
        self._leaves: dict[LaneId, list[Leave]] = {}

    def num_free(self, lane: LaneId) -> int:
        """Rows that a step of this lane could join now."""
        return len(self._free) + sum([left.lane == lane for left in self._left.values()])

    def take(self, lane: LaneId) -> int:
        """A row for a join in the next step of `lane`. Asking with none free is our bug."""
        if self._free:
            return self._free.popleft()
        row = next((row for row, left in self._left.items() if left.lane == lane), None)
        if row is None:
            raise InvariantError(f"none of the {self._count} rows is free on lane {lane}")
        del self._left[row]
        return row

    def leave(self, seq: SeqId, row: int, lane: LaneId) -> None:
        """`seq` runs no more; the executor learns of it with the next step of its lane."""
        self._left[row] = _Left(lane)
        self._leaves.setdefault(lane, []).append(Leave(seq))

    def lanes_left(self) -> tuple[LaneId, ...]:
        """Lanes whose next step has a leave to tell."""
        return tuple(self._leaves)

    def gather(self, source: LaneId, lane: LaneId) -> None:
        """`lane` tells the leaves of `source`, which has no step in flight and perhaps none to come."""
        for left in self._left.values():
            if left.lane == source and left.step is None:
                left.lane = lane
        if source in self._leaves:
            self._leaves.setdefault(lane, []).extend(self._leaves.pop(source))

    def submitted(self, step: StepId, lane: LaneId) -> tuple[Leave, ...]:
        """The leaves that this step has to tell."""
        for left in self._left.values():
            if left.lane == lane and left.step is None:
                left.step = step
        return tuple(self._leaves.pop(lane, ()))

    def collected(self, step: StepId) -> None:
        """What this step told is known: those rows are free on every lane."""
        told = [row for row, left in self._left.items() if left.step == step]
        for row in told:
            del self._left[row]
        self._free += told

    def check(self, taken: Iterable[int]) -> None:
        """Raise `InvariantError` unless every row is there once."""
        rows = sorted([*self._free, *self._left, *taken])
        if rows != list(range(self._count)):
            raise InvariantError(f"rows {rows} are free or taken; there are {self._count}, each once")
