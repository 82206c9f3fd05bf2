"""Lowering: a program becomes a tape.

Owns the order of the operations and where their buffers lie. What is fused is `fusion.py`'s business, what is
quantised `drafts.py`'s; the runtime decides how an operation is cut into pieces.
Invariant: two values that are alive at the same time share no byte; an operation never writes where it reads, but for
the input that it may take over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plait.core.errors import ModelError
from plait.exec.native.drafts import Draft, Numbering, drafts_of, quantize
from plait.exec.native.fusion import fuse
from plait.exec.native.tape import (
    NO_OPERAND,
    BufferSpec,
    Operand,
    Operands,
    OpKind,
    RowSpace,
    Scheme,
    Tape,
    row_bytes,
)
from plait.exec.native.uses import Uses
from plait.model.ops import Experts, Linear, ValueId
from plait.model.program import Program, product_weights

Key = tuple[ValueId, int]
"""A value as it is stored: in floats, 0, or in 8 bits, so many of which share a scale."""


def lower(program: Program, schemes: Mapping[str, Scheme]) -> Tape:
    """`schemes`: of every weight that is a matrix, by name. The program passed `checks.check_program`."""
    _check_depths(program, schemes)
    _check_experts(program, schemes)
    uses = Uses.of(program)
    groups = {name: scheme.row_group for name, scheme in schemes.items()}
    numbers = Numbering(schemes)
    fused = fuse(program, uses, groups)
    drafts = [made for place, one in fused for made in drafts_of(one, uses.spans[place], uses, numbers)]
    ordered = _outputs_last(quantize(drafts, uses))
    buffers, places = _place(ordered, uses)
    ops = tuple(replace(one.spec, in_=_inputs(one, uses, places), out=_outputs(one, uses, places)) for one in ordered)
    first_output_op = sum(one.spec.space is RowSpace.TOKENS for one in ordered)
    return Tape(
        ops,
        buffers,
        tuple(numbers.matrices),
        tuple(numbers.vectors),
        tuple(numbers.ropes),
        first_output_op,
        program.vocab_size,
    )


def _check_depths(program: Program, schemes: Mapping[str, Scheme]) -> None:
    routers = [op.weight for op in program.ops if isinstance(op, Linear)]
    for name in dict.fromkeys((*routers, *product_weights(program))):
        depth = program.weights[name].shape[1]
        if depth % schemes[name].depth_multiple:
            raise ModelError(
                f"weight {name} has rows of {depth} numbers in {schemes[name].name}, which are not whole groups of "
                f"{schemes[name].depth_multiple}; use a file in F16"
            )


def _check_experts(program: Program, schemes: Mapping[str, Scheme]) -> None:
    """Rows of all experts of a layer are quantised alike."""
    for op in program.ops:
        if not isinstance(op, Experts):
            continue
        for names in ((*op.gate, *op.up), op.down):
            odd = [name for name in names if schemes[name].row_group != schemes[names[0]].row_group]
            if odd:
                raise ModelError(
                    f"weight {odd[0]} is in {schemes[odd[0]].name} and {names[0]} in {schemes[names[0]].name}; experts "
                    "of a layer must be in formats of one kind: use --dtype f32, or a file in one format"
                )


def _outputs_last(drafts: Sequence[Draft]) -> list[Draft]:
    """Operations on tokens, then what selects rows of them, then operations on these rows."""

    def stage(one: Draft) -> int:
        if one.spec.kind is OpKind.SELECT:
            return 1
        return 0 if one.spec.space is RowSpace.TOKENS else 2

    return sorted(drafts, key=stage)


@dataclass(slots=True, eq=False)
class _Storage:
    """Bytes that hold one value after another. Lives from op `first` to op `last`, both included."""

    space: RowSpace
    group_size: int
    width: int
    first: int
    last: int

    @property
    def size(self) -> int:
        return row_bytes(self.width, self.group_size)


def _place(drafts: Sequence[Draft], uses: Uses) -> tuple[tuple[BufferSpec, ...], dict[Key, int]]:
    """Buffers, and the buffer of every stored value."""
    storages = _storages(drafts, uses)
    distinct = list(dict.fromkeys(storages.values()))
    offsets = {space: _offsets([one for one in distinct if one.space is space]) for space in RowSpace}
    numbers: dict[BufferSpec, int] = {}
    places: dict[Key, int] = {}
    for key, one in storages.items():
        spec = BufferSpec(one.space, one.group_size, one.width, offsets[one.space][one])
        places[key] = numbers.setdefault(spec, len(numbers))
    return tuple(numbers), places


def _storages(drafts: Sequence[Draft], uses: Uses) -> dict[Key, _Storage]:
    last_read: dict[Key, int] = {}
    for index, one in enumerate(drafts):
        last_read |= dict.fromkeys(_reads(one, uses), index)
    storages: dict[Key, _Storage] = {}
    for index, one in enumerate(drafts):
        for key in _writes(one):
            value, group_size = key
            end = max(index, last_read.get(key, index))
            taken = _taken_over(one, uses, key, index, last_read)
            if taken is not None:
                storages[key] = storages[taken]
                storages[key].last = end
            else:
                storages[key] = _Storage(one.spec.space, group_size, uses.width(value), index, end)
    return storages


def _taken_over(one: Draft, uses: Uses, key: Key, index: int, last_read: Mapping[Key, int]) -> Key | None:
    """The stored input whose bytes an output takes over, if it may."""
    if one.reuses is None or not one.outputs or key != (one.outputs[0], 0):
        return None
    value = one.inputs[one.reuses]
    dead = last_read[value, 0] == index if not uses.is_view(value) else False
    return (value, 0) if dead else None


def _reads(one: Draft, uses: Uses) -> list[Key]:
    """A view is read where its value is stored, unless it was quantised on its own."""
    keys: list[Key] = []
    for place, value in enumerate(one.inputs):
        keys.append((value, one.reads) if one.reads and place == 0 else (uses.root(value), 0))
    return keys


def _writes(one: Draft) -> list[Key]:
    made: list[Key] = [(value, 0) for value in one.outputs]
    return made if one.quantized is None else [*made, one.quantized]


def _offsets(storages: Sequence[_Storage]) -> dict[_Storage, int]:
    """First byte of each, per row: the lowest gap, among those alive with it, that is large enough."""
    offsets: dict[_Storage, int] = {}
    alive: list[_Storage] = []
    for one in sorted(storages, key=lambda storage: storage.first):
        alive = [other for other in alive if other.last >= one.first]
        start = 0
        for other in sorted(alive, key=offsets.__getitem__):
            if start + one.size <= offsets[other]:
                break
            start = max(start, offsets[other] + other.size)
        offsets[one] = start
        alive.append(one)
    return offsets


def _inputs(one: Draft, uses: Uses, places: Mapping[Key, int]) -> Operands:
    operands = []
    for value, key in zip(one.inputs, _reads(one, uses), strict=True):
        seen = uses.program.values[value]
        operands.append(Operand(places[key], 0 if key[1] else seen.offset, seen.width))
    return _three(operands)


def _outputs(one: Draft, uses: Uses, places: Mapping[Key, int]) -> Operands:
    """Floats first. An 8-bit output is the second, whether there are floats or not."""
    floats = [Operand(places[value, 0], 0, uses.width(value)) for value in one.outputs]
    if one.quantized is None:
        return _three(floats)
    eight_bits = Operand(places[one.quantized], 0, uses.width(one.quantized[0]))
    return (floats[0] if floats else NO_OPERAND), eight_bits, NO_OPERAND


def _three(operands: Sequence[Operand]) -> Operands:
    first, second, third = (operands[at] if at < len(operands) else NO_OPERAND for at in range(3))
    return first, second, third
