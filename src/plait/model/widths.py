"""Widths and spaces: does one op fit the values, weights and cache groups that it names?

Owns the shape rules of every operation, one short function per family of ops. Knows nothing about the order of ops.
Invariant: a program whose ops have no fault here can be executed without a further shape check.
"""

from __future__ import annotations

from plait.core.ids import GroupId
from plait.model.ops import (
    Act,
    Add,
    AllReduce,
    Attend,
    CacheWrite,
    Conv,
    Embed,
    Experts,
    Glu,
    Linear,
    Mul,
    Norm,
    Op,
    Place,
    Pool,
    Rope,
    Route,
    Sample,
    Scale,
    Scan,
    ScanKind,
    Select,
    Space,
    Tap,
)
from plait.model.parts import CacheGroup, ProgramParts
from plait.model.visibility import Reach

Faults = list[str]


def op_fault(program: ProgramParts, op: Op) -> str | None:
    """The first way in which `op` does not fit what it names, or None. Every name it uses must exist."""
    faults = _space_faults(program, op)
    widths = [program.values[value].width for value in op.inputs]
    out = 0 if op.output is None else program.values[op.output].width
    match op:
        case Embed():
            faults += _shape(program, op.table, (program.weights[op.table].shape[0], out))
        case Norm():
            faults += _equal("width", widths[0], out) + _norm_faults(program, op, out)
        case Linear():
            faults += _shape(program, op.weight, (out, widths[0])) + _shape(program, op.bias, (out,))
        case Rope():
            faults += _equal("width", widths[0], out) + _rope_faults(op, out)
        case CacheWrite():
            faults += _cache_write_faults(program, op, widths)
        case Attend():
            faults += _attend_faults(program, op, widths, out)
        case Mul():
            faults += _equal("width", widths[0], out)
            faults += [] if widths[1] in (1, out) else [f"factor of width {widths[1]} on rows of width {out}"]
        case Glu() | Add() | Act() | Scale() | Select() | AllReduce():
            faults += [fault for width in widths for fault in _equal("width", width, out)]
        case Place():
            faults += _equal("width", widths[0], out) + _place_faults(program.cache_groups[op.group], out)
        case Conv():
            faults += _equal("width", widths[0], out) + _conv_faults(program, op, out)
        case Scan():
            faults += _scan_faults(program, op, widths, out)
        case Route():
            faults += _route_faults(program, op, widths[0], out)
        case Experts():
            faults += _experts_faults(program, op, widths, out)
        case Sample():
            # No upper limit: on one rank of several, x has only some of the columns.
            faults += [] if op.vocab_size >= 1 else [f"vocab_size is {op.vocab_size}"]
        case Pool() | Tap():
            pass
    return faults[0] if faults else None


def _equal(what: str, given: int, expected: int) -> Faults:
    return [] if given == expected else [f"{what} is {given}, expected {expected}"]


def _shape(program: ProgramParts, name: str | None, *shapes: tuple[int, ...]) -> Faults:
    if name is None or program.weights[name].shape in shapes:
        return []
    expected = " or ".join(str(list(shape)) for shape in shapes)
    return [f"weight {name} has shape {list(program.weights[name].shape)}, expected {expected}"]


def _space_faults(program: ProgramParts, op: Op) -> Faults:
    spaces = [program.values[value].space for value in op.inputs]
    out = None if op.output is None else program.values[op.output].space
    match op:
        case Embed():
            fits = out is Space.TOKENS
        case Select():
            fits = spaces == [Space.TOKENS] and out is Space.OUTPUTS
        case Sample() | Pool():
            fits = spaces == [Space.OUTPUTS]
        case Place() | Conv() | Scan():
            fits = all(space is Space.TOKENS for space in spaces) and out is Space.TOKENS
        case CacheWrite():
            fits = len(set(spaces)) == 1 and spaces[0] is not Space.OUTPUTS
        case Attend():
            fits = len(set(spaces)) == 1 and out is spaces[0] and out is not Space.OUTPUTS
        case _:
            fits = len(set(spaces)) == 1 and out in (None, spaces[0])
    if fits:
        return []
    return [f"cannot turn rows of {', '.join(spaces) or 'nothing'} into rows of {out or 'nothing'}"]


def _norm_faults(program: ProgramParts, op: Norm, width: int) -> Faults:
    if op.parts < 1 or width % op.parts:
        return [f"{width} columns do not divide into {op.parts} parts"]
    shapes = ((width,), (width // op.parts,))
    faults = _shape(program, op.weight, *shapes) + _shape(program, op.bias, *shapes)
    return faults if op.eps > 0 else [*faults, f"eps is {op.eps}"]


def _rope_faults(op: Rope, width: int) -> Faults:
    faults = _equal("width", width, op.heads * op.head_dim)
    dim = op.spec.rotary_dim
    if not 0 < dim <= op.head_dim or dim % 2:
        faults.append(f"rotary_dim {dim} of head_dim {op.head_dim}")
    return faults


def _slot_faults(group: CacheGroup, slot: int) -> Faults:
    return [] if 0 <= slot < group.num_layers else [f"slot {slot} of group {group.name}, which has {group.num_layers}"]


def _cache_write_faults(program: ProgramParts, op: CacheWrite, widths: list[int]) -> Faults:
    group = program.cache_groups[op.group]
    expected = [group.num_kv_heads * group.head_dim_k, group.num_kv_heads * group.head_dim_v]
    if group.kind == "embedding":
        expected = expected[:1]
    faults = _slot_faults(group, op.slot)
    if group.is_state or widths != expected:
        faults.append(f"writes rows of {widths} into group {group.name}, which holds {expected} per token and layer")
    return faults


def _attend_faults(program: ProgramParts, op: Attend, widths: list[int], out: int) -> Faults:
    if op.kv_heads < 1 or op.heads % op.kv_heads:
        return [f"{op.heads} heads share {op.kv_heads} KV heads"]
    query, keys = op.heads * op.head_dim_k, op.kv_heads * op.head_dim_k
    faults = _equal("width of the query", widths[0], query) + _equal("output width", out, op.heads * op.head_dim_v)
    faults += _shape(program, op.sinks, (op.heads,))
    if op.group is None:
        wanted = [query, keys, op.kv_heads * op.head_dim_v]
        return faults if widths == wanted else [*faults, f"inputs are {widths} wide, expected {wanted}"]
    group = program.cache_groups[op.group]
    given = (op.kv_heads, op.head_dim_k, op.head_dim_v)
    held = (group.num_kv_heads, group.head_dim_k, group.head_dim_v)
    if len(widths) != 1 or given != held or group.is_state or group.kind == "embedding":
        faults.append(f"reads KV heads and dims {given} from group {group.name}, which holds {held}")
    if not _group_keeps(group, op):
        kept = f"{group.kind} {group.window}"
        faults.append(f"{op.visibility.reach} attention needs keys that group {group.name} ({kept}) drops")
    return faults + _slot_faults(group, op.slot)


def _group_keeps(group: CacheGroup, op: Attend) -> bool:
    """Whether the group still has every key that the op sees."""
    match group.kind:
        case "window":
            return op.visibility.reach is Reach.WINDOW and op.visibility.size <= group.window
        case "chunked":
            return op.visibility.reach is Reach.CHUNK and op.visibility.size == group.window
        case "cross":
            return op.visibility.reach is Reach.ALL
        case _:
            return op.visibility.reach is not Reach.ALL


def _place_faults(group: CacheGroup, width: int) -> Faults:
    if group.kind == "embedding" and group.num_kv_heads * group.head_dim_k == width:
        return []
    return [f"places rows of group {group.name} ({group.kind}) into rows of width {width}"]


def _state_faults(program: ProgramParts, group_id: GroupId, slot: int, part: int, elements: int) -> Faults:
    group = program.cache_groups[group_id]
    if not group.is_state or not 0 <= part < len(group.state_parts):
        return [f"part {part} of group {group.name} ({group.kind}), which has {len(group.state_parts)} state parts"]
    return _slot_faults(group, slot) + _equal("state elements", group.state_parts[part], elements)


def _conv_faults(program: ProgramParts, op: Conv, channels: int) -> Faults:
    faults = _shape(program, op.weight, (channels, op.width)) + _shape(program, op.bias, (channels,))
    return faults + _state_faults(program, op.group, op.slot, op.part, channels * (op.width - 1))


def _scan_faults(program: ProgramParts, op: Scan, widths: list[int], out: int) -> Faults:
    heads, dim, state, shared = op.heads, op.head_dim, op.state_dim, op.groups * op.state_dim
    inner = heads * dim
    forms: dict[ScanKind, tuple[list[int], list[tuple[int, ...]]]] = {
        ScanKind.MAMBA1: ([heads, heads, state, state], [(heads, state), (heads,), (heads,)]),
        ScanKind.MAMBA2: ([inner, heads, shared, shared], [(heads,), (heads,), (heads,)]),
        ScanKind.GATED_DELTA: ([shared, shared, inner, heads, heads], [(heads,), (heads,)]),
        ScanKind.RWKV7: ([inner] * 6, []),
    }
    wanted, shapes = forms[op.kind]
    faults = [] if widths == wanted else [f"inputs are {widths} wide, expected {wanted}"]
    if len(op.weights) != len(shapes):
        return [*faults, f"{len(op.weights)} weights, expected {len(shapes)}"]
    faults += [fault for name, shape in zip(op.weights, shapes, strict=True) for fault in _shape(program, name, shape)]
    faults += _equal("output width", out, inner)
    if op.groups < 1 or heads % op.groups:
        faults.append(f"{heads} heads share {op.groups} groups")
    if op.kind is ScanKind.MAMBA1 and dim != 1:
        faults.append(f"head_dim is {dim}, expected 1")
    if op.kind is ScanKind.RWKV7 and dim != state:
        faults.append(f"state_dim is {state}, expected head_dim {dim}")
    return faults + _state_faults(program, op.group, op.slot, op.part, op.state_elements)


def _route_faults(program: ProgramParts, op: Route, width: int, out: int) -> Faults:
    faults = _equal("width of the logits", width, op.experts) + _shape(program, op.bias, (op.experts,))
    faults += _equal("output width", out, 2 * op.top_k)
    if not 0 < op.top_k <= op.experts:
        faults.append(f"top_k {op.top_k} of {op.experts} experts")
    if op.groups < 1 or op.experts % op.groups or not 0 < op.top_groups <= op.groups:
        faults.append(f"{op.top_groups} of {op.groups} groups of {op.experts} experts")
    return faults


def _experts_faults(program: ProgramParts, op: Experts, widths: list[int], out: int) -> Faults:
    inward, outward = (op.ffn_hidden, out), (out, op.ffn_hidden)
    faults = _equal("width", widths[0], out) + _equal("routing width", widths[1], 2 * op.top_k)
    if not len(op.gate) == len(op.up) == len(op.down) >= op.top_k:
        return [*faults, f"{len(op.gate)}, {len(op.up)} and {len(op.down)} matrices, {op.top_k} experts for a row"]
    for names, shape in ((op.gate, inward), (op.up, inward), (op.down, outward)):
        faults += [fault for name in names for fault in _shape(program, name, shape)]
    widths_of = (op.ffn_hidden, op.ffn_hidden, out)
    biases = zip(op.biases or (), widths_of, strict=False)
    return faults + [fault for name, width in biases for fault in _shape(program, name, (op.experts, width))]
