"""Dual scanner: two pointers that walk the units toward each other, one from each end.

Owns which request comes next on which side, and how much memory and how many prompt tokens a step each side may have
(BlendServe, ASPLOS 2026, section 5.3 and algorithm 3), so that what runs at any time has the density of the whole job.
Knows no memory manager: who asks says what both sides hold now.
Invariants: requests of a unit come depth first, on the left side from its beginning and on the right from its end; both
sides' memory adds up to what there is; the job's density never changes; what is taken is a permutation of the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from plait.cost.density import partition
from plait.sched.blend.units import DensityTree, Unit


class End(IntEnum):
    """Of the row of units."""

    LEFT = 0
    """More computing than the job as a whole."""
    RIGHT = 1


@dataclass(frozen=True, slots=True)
class Held:
    """What a request holds on average over its life (bytes), its prompt and its output (tokens)."""

    mean_bytes: float
    prompt: float
    output: float


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of one side: bytes of memory, sequences in decode (N_X), and prompt tokens a step (C_X)."""

    memory_bytes: float
    sequences: float
    prefill_tokens: float


@dataclass(slots=True)
class _Pointer:
    """Where one side stands. `unit` is None when there is nothing left to walk."""

    unit: Unit | None
    rest: Iterator[int]
    ahead: deque[int]
    """Looked at, not taken."""
    mean: Held


class DualScanner:
    """`held` of each request; `units` as `plait.sched.blend.units.cut` gives them."""

    def __init__(self, dense: DensityTree, units: Sequence[Unit], held: Callable[[int], Held]) -> None:
        self._dense = dense
        self._held = held
        self._units = deque(units)
        compute_s = sum(unit.compute_s for unit in units)
        memory_s = sum(unit.memory_s for unit in units)
        self.root_density = compute_s / memory_s if memory_s else float("inf")
        self._sides = [_density([unit for unit in units if self._is_of(unit, end)]) for end in End]
        self._pointers = (self._next_pointer(End.LEFT), self._next_pointer(End.RIGHT))

    def _is_of(self, unit: Unit, end: End) -> bool:
        return (unit.density > self.root_density) is (end is End.LEFT)

    def lasting_part(self, memory_bytes: float) -> float:
        """M_R as if both sides were as dense as all that they will take. What the right side takes stays for long, so
        that it leaves room for what the left side takes meanwhile and not for its next unit alone.
        """
        return partition(self._sides[End.LEFT], self._sides[End.RIGHT], self.root_density, memory_bytes)[1]

    def _next_pointer(self, end: End) -> _Pointer:
        if not self._units:
            return _Pointer(None, iter(()), deque(), Held(0.0, 0.0, 0.0))
        unit = self._units.popleft() if end is End.LEFT else self._units.pop()
        # The right side comes from its end: what is most memory first, and still every beginning in one piece.
        walk = self._dense.requests(unit.items, backwards=end is End.RIGHT)
        return _Pointer(unit, walk, deque(), self._mean(unit))

    def _mean(self, unit: Unit) -> Held:
        total_bytes = prompt = output = 0.0
        for request in self._dense.requests(unit.items):
            one = self._held(request)
            total_bytes, prompt, output = total_bytes + one.mean_bytes, prompt + one.prompt, output + one.output
        count = unit.num_requests
        return Held(total_bytes / count, prompt / count, output / count)

    def unit(self, end: End) -> Unit | None:
        """That the side walks now; None: it has ended."""
        return self._pointers[end].unit

    def peek(self, end: End) -> int | None:
        """The next request of a side, not taken; None: there is none."""
        pointer = self._pointers[end]
        while not pointer.ahead:
            if pointer.unit is None:
                return None
            request = next(pointer.rest, None)
            if request is None:
                pointer = self._move_on(end)
            else:
                pointer.ahead.append(request)
        return pointer.ahead[0]

    def take(self, end: End) -> int:
        """What `peek` shows, which must not be None."""
        request = self.peek(end)
        if request is None:
            raise LookupError(f"nothing is left on the {end.name.lower()}")
        return self._pointers[end].ahead.popleft()

    def _move_on(self, end: End) -> _Pointer:
        pointer = self._next_pointer(end)
        pointers = list(self._pointers)
        pointers[end] = pointer
        self._pointers = (pointers[0], pointers[1])
        return pointer

    def split(self, memory_bytes: float, job_density: float | None = None) -> tuple[float, float]:
        """(M_L, M_R). `job_density`: instead of the job's own, where other work beside it leaves another mix idle."""
        # Whoever has run out is moved on first.
        for pointer, end in zip(self._pointers, End, strict=True):
            if not pointer.ahead:
                self.peek(end)
        left, right = self._pointers[End.LEFT].unit, self._pointers[End.RIGHT].unit
        if left is None or right is None:
            return (memory_bytes, 0.0) if right is None else (0.0, memory_bytes)
        root = self.root_density if job_density is None else job_density
        return partition(left.density, right.density, root, memory_bytes)

    def allowances(self, memory_bytes: float, job_density: float | None = None) -> tuple[Allowance, Allowance]:
        """Of both sides, when the cache has `memory_bytes` for this job."""
        parts = self.split(memory_bytes, job_density)
        left, right = (_allowance(part, pointer.mean) for part, pointer in zip(parts, self._pointers, strict=True))
        return left, right


def _density(units: Sequence[Unit]) -> float:
    memory_s = sum(unit.memory_s for unit in units)
    return sum(unit.compute_s for unit in units) / memory_s if memory_s else float("inf")


def _allowance(memory_bytes: float, mean: Held) -> Allowance:
    sequences = memory_bytes / mean.mean_bytes if mean.mean_bytes else 0.0
    return Allowance(memory_bytes, sequences, sequences * mean.prompt / mean.output if mean.output else 0.0)
