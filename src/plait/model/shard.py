"""Sharding: one rank's part of a program under tensor parallelism.

Owns the walk that follows each value from where it is cut to where it is summed, and puts an `AllReduce` there. Every
rank gets the same program; which columns are its own is decided by the weights' shard axes when they are loaded. Logits
stay cut: a rank samples over its own part of the vocabulary and the parts are merged.
Invariant: rows cut by columns never reach an op that needs all of them; such a model is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

from plait.core.errors import ModelError
from plait.core.ids import GroupId
from plait.model.checks import live_after, root_of
from plait.model.ops import (
    Act,
    Add,
    AllReduce,
    Attend,
    CacheWrite,
    Embed,
    Experts,
    Glu,
    Linear,
    Mul,
    Norm,
    Op,
    Rope,
    Sample,
    Scale,
    Select,
    Value,
    ValueId,
    op_name,
    op_weights,
)
from plait.model.parts import CacheGroup, ProgramParts, Span, WeightSpec

AnyProgram = TypeVar("AnyProgram", bound=ProgramParts)


class Placement(Enum):
    """What one rank holds of a value."""

    WHOLE = "whole"
    CUT = "cut"
    """Its own columns."""
    PARTIAL = "partial"
    """A term of the sum over ranks."""


def shard(program: AnyProgram, ranks: int) -> AnyProgram:
    """The program of one of `ranks` ranks: weights, heads and KV heads divided, partial results summed."""
    if ranks == 1:
        return program
    cut = _Cut(program, ranks)
    ops, spans = cut.ops_and_spans()
    return program.rebuilt(ops, cut.values(), spans, cut.weights(), cut.cache_groups())


class _Cut:
    """State of one walk over a program's ops."""

    def __init__(self, program: ProgramParts, ranks: int) -> None:
        self._of = program
        self._ranks = ranks
        self._placed: dict[ValueId, Placement] = dict.fromkeys(program.inputs, Placement.WHOLE)
        self._values = list(program.values)
        self._groups = list(program.cache_groups)

    def ops_and_spans(self) -> tuple[tuple[Op, ...], tuple[Span, ...]]:
        ops: list[Op] = []
        bounds: list[tuple[int, int]] = []
        for span in self._of.spans:
            first = len(ops)
            for op in self._of.ops_of(span):
                ops += self._cut_op(op)
            bounds.append((first, len(ops) - 1))
        alive = live_after(ops, self._values, [last for _, last in bounds])
        spans = [
            replace(span, first=first, last=last, live_out=live)
            for span, (first, last), live in zip(self._of.spans, bounds, alive, strict=True)
        ]
        return tuple(ops), tuple(spans)

    def values(self) -> tuple[Value, ...]:
        """After the walk: values of the rank's own columns are as wide as its share."""
        return tuple(self._value(value) for value in self._values)

    def weights(self) -> Mapping[str, WeightSpec]:
        specs = self._of.weights.items()
        return MappingProxyType({name: replace(spec, shape=self._shape(spec)) for name, spec in specs})

    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """After the walk."""
        return tuple(self._groups)

    def _cut_op(self, op: Op) -> list[Op]:
        """`op` for one rank, with the sum behind it where its result is partial."""
        placed = {self._placed[root_of(self._of.values, value)] for value in op.inputs}
        if len(placed) > 1:
            raise self._refusal(f"{op_name(op)} mixes rows that are cut among ranks with rows that are not")
        cut = placed == {Placement.CUT}
        local, result = self._local(op, cut)
        if local.output is None:
            return [local]
        if result is not Placement.PARTIAL:
            self._placed[local.output] = result
            return [local]
        whole = local.output
        partial = replace(
            self._values[whole], id=ValueId(len(self._values)), name=f"{self._values[whole].name} partial"
        )
        self._values.append(partial)
        self._placed[whole] = self._placed[partial.id] = Placement.WHOLE
        assert isinstance(local, Embed | Linear | Experts)
        return [replace(local, output=partial.id), AllReduce((partial.id,), whole, self._ranks)]

    def _local(self, op: Op, cut: bool) -> tuple[Op, Placement]:
        match op:
            case Embed():
                return op, Placement.PARTIAL if self._axis(op.table) == 0 else Placement.WHOLE
            case Linear():
                return op, self._linear(op, cut)
            case Experts() if not cut and self._axis(op.gate[0]) is not None:
                if op.biases is not None:
                    raise self._refusal(f"bias {op.biases[-1]} would be added once by every rank")
                return replace(op, ffn_hidden=self._share(op.ffn_hidden, "expert columns")), Placement.PARTIAL
            case Glu() | Act() | Add() | Mul() | Scale() | Select() | Sample():
                return op, Placement.CUT if cut else Placement.WHOLE
            case Rope() if cut:
                return replace(op, heads=self._share(op.heads, "heads")), Placement.CUT
            case Norm() if cut and op.parts > 1:
                return replace(op, parts=self._share(op.parts, "normed parts")), Placement.CUT
            case CacheWrite() if cut:
                self._cut_group(op.group)
                return op, Placement.CUT
            case Attend() if cut:
                if op.group is not None:
                    self._cut_group(op.group)
                heads, kv_heads = self._share(op.heads, "heads"), self._share(op.kv_heads, "KV heads")
                return replace(op, heads=heads, kv_heads=kv_heads), Placement.CUT
            case _:
                pass
        if cut or any(self._axis(name) is not None for name in op_weights(op)):
            raise self._refusal(f"{op_name(op)} cannot be cut among ranks")
        return op, Placement.WHOLE

    def _linear(self, op: Linear, cut: bool) -> Placement:
        axis = self._axis(op.weight)
        if cut != (axis == 1):
            raise self._refusal(
                f"weight {op.weight} is cut along axis {axis} but its rows are {'' if cut else 'not '}cut"
            )
        if axis == 1 and op.bias is not None:
            raise self._refusal(f"bias {op.bias} would be added once by every rank")
        return {0: Placement.CUT, 1: Placement.PARTIAL, None: Placement.WHOLE}[axis]

    def _cut_group(self, group_id: GroupId) -> None:
        group = self._of.cache_groups[group_id]
        self._groups[group_id] = replace(group, num_kv_heads=self._share(group.num_kv_heads, "KV heads"))

    def _value(self, value: Value) -> Value:
        if self._placed[root_of(self._values, value.id)] is not Placement.CUT:
            return value
        if value.base is not None:
            raise self._refusal(f"{value.name} is a view of rows that are cut among ranks")
        return replace(value, width=self._share(value.width, f"columns of {value.name}"))

    def _shape(self, spec: WeightSpec) -> tuple[int, ...]:
        return tuple(
            self._share(size, f"rows of {spec.name}") if axis == spec.shard_axis else size
            for axis, size in enumerate(spec.shape)
        )

    def _axis(self, name: str) -> int | None:
        return self._of.weights[name].shard_axis

    def _share(self, count: int, what: str) -> int:
        if count % self._ranks:
            raise self._refusal(f"{count} {what} do not divide evenly")
        return count // self._ranks

    def _refusal(self, why: str) -> ModelError:
        return ModelError(
            f"model {self._of.name} cannot run on {self._ranks} ranks: {why}; choose another number of ranks"
        )
