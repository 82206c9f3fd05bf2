"""Checks: does a program contradict itself?

Owns the rules about order, spans and names, and liveness, on which they rest; `widths` has the rules for single ops.
Invariant: every fault found here is ours, so it is an `InvariantError` that names the program and the op.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.model.ops import Attend, CacheWrite, Conv, Op, Scan, Value, ValueId, op_group, op_name, op_weights
from plait.model.parts import ProgramParts, Span
from plait.model.widths import op_fault

WEIGHT_FIELDS = ("table", "weight", "bias", "sinks", "weights", "gate", "up", "down", "biases")
"""Fields of ops that hold weight names."""


def check_program(program: ProgramParts) -> None:
    """Raise `InvariantError` for the first contradiction."""
    for fault in _faults(program):
        raise InvariantError(f"program {program.name}: {fault}")


def _faults(program: ProgramParts) -> Iterator[str]:
    yield from _naming_faults(program)
    yield from _order_faults(program)
    for index, op in enumerate(program.ops):
        fault = op_fault(program, op)
        if fault:
            yield f"op {index} ({op_name(op)}): {fault}"
    yield from _cache_order_faults(program)
    yield from _span_faults(program)


def _naming_faults(program: ProgramParts) -> Iterator[str]:
    for place, value in enumerate(program.values):
        if value.id != place:
            yield f"value {value.name} has id {value.id} but stands at {place}"
        if value.width < 1:
            yield f"value {value.name} has width {value.width}"
        if value.base is not None:
            yield from _view_faults(program, value, value.base)
    for place, group in enumerate(program.cache_groups):
        if group.id != place:
            yield f"cache group {group.name} has id {group.id} but stands at {place}"
    for name, spec in program.weights.items():
        if name != spec.name:
            yield f"weight {spec.name} is filed under {name}"


def _view_faults(program: ProgramParts, view: Value, base: ValueId) -> Iterator[str]:
    if not 0 <= base < len(program.values):
        yield f"view {view.name} names unknown value {base}"
        return
    of = program.values[base]
    if of.base is not None:
        yield f"view {view.name} is a view of the view {of.name}"
    if view.space is not of.space:
        yield f"view {view.name} is in {view.space} but {of.name} in {of.space}"
    if view.offset < 0 or view.offset + view.width > of.width:
        yield f"view {view.name} covers columns {view.offset} to {view.offset + view.width} of {of.width}"


def _order_faults(program: ProgramParts) -> Iterator[str]:
    defined: set[ValueId] = set(program.inputs)
    for index, op in enumerate(program.ops):
        where = f"op {index} ({op_name(op)})"
        for value in (*op.inputs, *(() if op.output is None else (op.output,))):
            if not 0 <= value < len(program.values):
                yield f"{where} names unknown value {value}"
                return
        for value in op.inputs:
            if root_of(program.values, value) not in defined:
                yield f"{where} uses {program.values[value].name} before it is defined"
        if op.output is not None:
            if op.output in defined:
                yield f"{where} defines {program.values[op.output].name} a second time"
            if program.values[op.output].base is not None:
                yield f"{where} writes the view {program.values[op.output].name}"
            defined.add(op.output)
        for name in op_weights(op):
            if name not in program.weights:
                yield f"{where} names unknown weight {name}"
                return
        group = op_group(op)
        if group is not None and not 0 <= group < len(program.cache_groups):
            yield f"{where} names unknown cache group {group}"
            return
    for value in program.values:
        if root_of(program.values, value.id) not in defined:
            yield f"value {value.name} is defined by no op"
    used = {name for op in program.ops for name in op_weights(op)}
    for name in program.weights:
        if name not in used:
            yield f"weight {name} is used by no op"


def _cache_order_faults(program: ProgramParts) -> Iterator[str]:
    """A layer's keys are written once, before anyone reads them; those of encoder rows may be another program's."""
    written: set[tuple[GroupId, int, int]] = set()
    writers = {place for op in program.ops if (place := _written_place(op)) is not None}
    for index, op in enumerate(program.ops):
        place = _written_place(op)
        if place is not None:
            if place in written:
                yield f"op {index} ({op_name(op)}) writes slot {place[1]} of group {place[0]} a second time"
            written.add(place)
        elif isinstance(op, Attend) and op.group is not None:
            read = (op.group, op.slot, 0)
            if read in writers and read not in written:
                yield f"op {index} (Attend) reads slot {op.slot} of group {op.group} before it is written"
            if read not in writers and program.cache_groups[op.group].kind != "cross":
                yield f"op {index} (Attend) reads slot {op.slot} of group {op.group}, which no op writes"


def _written_place(op: Op) -> tuple[GroupId, int, int] | None:
    match op:
        case CacheWrite():
            return (op.group, op.slot, 0)
        case Conv() | Scan():
            return (op.group, op.slot, op.part)
        case _:
            return None


def _span_faults(program: ProgramParts) -> Iterator[str]:
    after = 0
    for span in program.spans:
        if span.first != after or span.last < span.first:
            yield f"span {span.name} covers ops {span.first} to {span.last}; it must start at {after} and hold an op"
            return
        after = span.last + 1
    if after != len(program.ops):
        yield f"spans cover {after} of {len(program.ops)} ops"
        return
    alive = live_after(program.ops, program.values, [span.last for span in program.spans])
    models: dict[str, tuple[Span, tuple[object, ...]]] = {}
    for span, live in zip(program.spans, alive, strict=True):
        if span.live_out != live:
            yield f"span {span.name} has live_out {span.live_out}; liveness gives {live}"
        ops = program.ops_of(span)
        groups = groups_of(ops)
        if span.groups != groups:
            yield f"span {span.name} lists groups {span.groups}; its ops use {groups}"
        form = canonical_form(program, ops)
        first, expected = models.setdefault(span.kind, (span, form))
        if form != expected:
            yield f"spans {first.name} and {span.name} are both of kind {span.kind} but their ops differ"


def root_of(values: Sequence[Value], value: ValueId) -> ValueId:
    """The value that `value` is a view of, or itself."""
    base = values[value].base
    return value if base is None else base


def live_after(ops: Sequence[Op], values: Sequence[Value], boundaries: Sequence[int]) -> list[tuple[ValueId, ...]]:
    """For each op index in `boundaries` (ascending), the values defined by then that a later op reads, ascending."""
    last_use: dict[ValueId, int] = {}
    born: dict[ValueId, int] = {}
    for index, op in enumerate(ops):
        for value in op.inputs:
            last_use[root_of(values, value)] = index
        if op.output is not None:
            born[op.output] = index
    alive: list[list[ValueId]] = [[] for _ in boundaries]
    for value, end in sorted(last_use.items()):
        for place in range(bisect_left(boundaries, born.get(value, -1)), bisect_left(boundaries, end)):
            alive[place].append(value)
    return [tuple(ids) for ids in alive]


def groups_of(ops: Iterable[Op]) -> tuple[GroupId, ...]:
    """Cache groups that `ops` touch, ascending."""
    return tuple(sorted({group for op in ops if (group := op_group(op)) is not None}))


def canonical_form(program: ProgramParts, ops: Sequence[Op]) -> tuple[object, ...]:
    """`ops` with value ids, weight names and slots numbered by first use: equal for spans that may share a kind."""
    numbers: dict[tuple[str, object], int] = {}

    def number(sort: str, item: object) -> int:
        return numbers.setdefault((sort, item), len(numbers))

    def value_form(value_id: ValueId) -> object:
        value = program.values[value_id]
        return (
            number("value", root_of(program.values, value_id)),
            value.space,
            value.width,
            value.base is None,
            value.offset,
        )

    def weight_form(name: str) -> object:
        spec = program.weights[name]
        return (number("weight", name), spec.shape, spec.role, spec.shard_axis)

    def field_form(op: Op, name: str) -> object:
        field = getattr(op, name)
        if name == "inputs":
            return tuple(value_form(value) for value in field)
        if field is None:
            return None
        if name == "output":
            return value_form(field)
        if name == "slot":
            return number("slot", (op_group(op), field))
        if name in WEIGHT_FIELDS:
            return tuple(weight_form(weight) for weight in ((field,) if isinstance(field, str) else field))
        return field

    return tuple((op_name(op), *(field_form(op, field.name) for field in fields(op))) for op in ops)
