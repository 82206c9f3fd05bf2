"""Fusion: which ops of a program become one operation of the tape.

Owns the patterns: projections of one input, gate and up with the gated activation, a residual added by the product in
front of it, rotation with the write into the cache. Knows neither buffers nor quantisation.
Invariant: the operations, carried out in order, compute what the program's ops define, each exactly once: an op may be
carried out earlier or later than it stands, but always behind its inputs and before its readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from plait.exec.native.uses import Uses
from plait.model.ops import Add, CacheWrite, Glu, Linear, Op, Rope, ValueId
from plait.model.program import Program

MOST_MATRICES = 3
"""Matrices that one kGemm multiplies with the same rows."""


@dataclass(frozen=True, slots=True)
class Plain:
    """An op as it stands."""

    op: Op


@dataclass(frozen=True, slots=True)
class Projections:
    """Products of one input with up to three matrices."""

    linears: tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class AddedProduct:
    """A product onto which `residual` is added."""

    linear: Linear
    residual: ValueId
    output: ValueId


@dataclass(frozen=True, slots=True)
class GatedProducts:
    gate: Linear
    up: Linear
    glu: Glu


@dataclass(frozen=True, slots=True)
class RotatedWrite:
    """Rotates q in place; rotates k and writes it, with v, into the cache."""

    q: Rope
    k: Rope
    write: CacheWrite


Fused = Plain | Projections | AddedProduct | GatedProducts | RotatedWrite


def fuse(program: Program, uses: Uses, groups: Mapping[str, int]) -> list[tuple[int, Fused]]:
    """What is carried out, in order, each with the op in whose place it stands. `groups`: of every weight, how many
    numbers share a scale in the quantised rows that it is multiplied with, 0 where they are floats; weights that differ
    in this never share an input.
    """
    fusion = _Fusion(program, uses, groups)
    fusion.find()
    return sorted(fusion.found.items())


@dataclass(slots=True)
class _Fusion:
    program: Program
    uses: Uses
    groups: Mapping[str, int]
    found: dict[int, Fused] = field(default_factory=dict)
    """By the op in whose place it is carried out."""
    taken: set[int] = field(default_factory=set)

    def find(self) -> None:
        ops = self.program.ops
        for index, op in enumerate(ops):
            match op:
                case Glu():
                    self._gated(index, op)
                case Add():
                    self._added(index, op)
                case CacheWrite():
                    self._rotated(index, op)
                case _:
                    pass
        for index, op in enumerate(ops):
            if index in self.taken:
                continue
            if isinstance(op, Linear):
                self._take(index, Projections(tuple(self._siblings(index, op))), index)
            else:
                self._take(index, Plain(op), index)

    def _take(self, place: int, fused: Fused, *ops: int) -> None:
        self.found[place] = fused
        self.taken.update(ops)

    def _gated(self, index: int, glu: Glu) -> None:
        products = [self._free_product(value, index) for value in glu.inputs]
        gate, up = products
        if gate is None or up is None or gate == up:
            return
        first, second = self.program.ops[gate], self.program.ops[up]
        if isinstance(first, Linear) and isinstance(second, Linear) and self._alike(first, second):
            self._take(index, GatedProducts(first, second, glu), index, gate, up)

    def _added(self, index: int, add: Add) -> None:
        a, b = add.inputs
        for value, residual in ((b, a), (a, b)):
            # The factor is that of b: it must not be lost, whichever of the two the product is.
            product = self._free_product(value, index) if add.factor == 1.0 else None
            if product is not None and isinstance(linear := self.program.ops[product], Linear):
                self._take(index, AddedProduct(linear, residual, add.output), index, product)
                return

    def _free_product(self, value: ValueId, reader: int) -> int | None:
        """The Linear that makes `value`, if it is free and only `reader` wants its result."""
        maker = self.uses.makers.get(value)
        if maker is None or maker in self.taken or self.uses.only_reader(value) != reader:
            return None
        return maker if isinstance(self.program.ops[maker], Linear) else None

    def _alike(self, one: Linear, other: Linear) -> bool:
        return one.inputs == other.inputs and self.groups[one.weight] == self.groups[other.weight]

    def _siblings(self, index: int, linear: Linear) -> Iterator[Linear]:
        """The Linear itself and those behind it in its span that multiply the same rows."""
        yield linear
        left = MOST_MATRICES - 1
        for other in sorted(set(self.uses.readers[self.uses.root(linear.inputs[0])])):
            op = self.program.ops[other]
            free = other > index and other not in self.taken and self.uses.same_span(index, other)
            if left and free and isinstance(op, Linear) and self._alike(linear, op):
                left -= 1
                self.taken.add(other)
                yield op

    def _rotated(self, index: int, write: CacheWrite) -> None:
        if len(write.inputs) != 2:
            return
        key = self._free_rope(write.inputs[0])
        if key is None or self.uses.only_reader(write.inputs[0]) != index:
            return
        k = self.program.ops[key]
        group = self.program.cache_groups[write.group]
        if not isinstance(k, Rope) or (k.heads, k.head_dim) != (group.num_kv_heads, group.head_dim_k):
            return
        for query in range(self.program.spans[self.uses.spans[index]].first, index):
            q = self.program.ops[query]
            if query != key and isinstance(q, Rope) and self._turns_with(query, q, k, index):
                self._take(index, RotatedWrite(q, k, write), index, key, query)
                return

    def _turns_with(self, query: int, q: Rope, k: Rope, write: int) -> bool:
        """Whether q may be rotated when k is: by the same table, and nobody wants it earlier."""
        same_table = (q.spec, q.mscale, q.pairing, q.head_dim) == (k.spec, k.mscale, k.pairing, k.head_dim)
        readers = self.uses.readers.get(q.output, ())
        free = self._free_rope(q.output) == query and self.uses.space(q.output) is self.uses.space(k.output)
        return same_table and free and all(reader > write for reader in readers)

    def _free_rope(self, value: ValueId) -> int | None:
        """The Rope that makes `value`, if it is free and may overwrite what it rotates."""
        maker = self.uses.makers.get(value)
        if maker is None or maker in self.taken:
            return None
        op = self.program.ops[maker]
        if not isinstance(op, Rope) or self.uses.only_reader(op.inputs[0]) != maker:
            return None
        return maker
