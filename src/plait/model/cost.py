"""Costs: what the operations of a program do to one step's time, counted and not measured.

Owns the formulas: flops, bytes of weights, cache, activations and communication, from the shape of a step alone. Sums
over rows are closed forms. Knows no device: seconds are made of these counts elsewhere.
Invariant: the cost of a step is the sum of `count` times each record; a span kind is priced once whatever its count.

An op without rows in the step costs nothing. The formulas, with R rows, a activation bytes, b weight bytes per number:
docs/reference/ops.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from plait.core.ids import GroupId
from plait.core.step import ChunkShape, StepShape
from plait.model.ops import (
    Act,
    Activation,
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
    Shift,
    Space,
    Tap,
    op_name,
    op_weights,
)
from plait.model.parts import ProgramParts
from plait.model.shard import shard
from plait.model.visibility import Reach, Visibility

ACTIVATION_FLOPS = {
    Activation.SILU: 5,
    Activation.GELU: 10,
    Activation.GELU_TANH: 10,
    Activation.RELU2: 4,
    Activation.SIGMOID: 4,
    Activation.TANH: 5,
}
"""Per number, the product with `up` included where there is one."""

SCAN_FLOPS = {ScanKind.MAMBA1: 7, ScanKind.MAMBA2: 5, ScanKind.GATED_DELTA: 7, ScanKind.RWKV7: 9}
"""Per number of the state and token: multiplications and additions of the recurrence as written at `Scan`."""

ROUTE_FLOPS = 5
"""Per expert: an exponential and its part of a sum."""

LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Formats:
    """How many bytes numbers take: per number, scales and minima of their groups included (Q4_1: 0.625)."""

    weight_bytes: Mapping[str, float] = field(default_factory=dict)
    """By weight name. Layers of one span kind may differ: the kind is priced with their mean."""
    default_weight_bytes: float = 4.0
    cache_bytes: Mapping[GroupId, float] = field(default_factory=dict)
    default_cache_bytes: float = 4.0
    activation_bytes: float = 4.0
    attention_tile_rows: int = 128
    """Rows (tokens times query heads per KV head) that share one reading of the keys."""
    attention_reuse: float = 1.0
    """Row tiles that share one reading of the keys through a cache nearer to the core; a chunk reads at least once."""
    compute: Mapping[str, str] = field(default_factory=dict)
    """The number format in which a weight is multiplied, by weight name: that of the kernel, not of the file."""
    default_compute: str | None = None
    """None: in what the device usually multiplies. Attention and element-wise operations have no weight: `attention`
    and the usual."""
    attention: str | None = None

    def weight(self, name: str) -> float:
        return self.weight_bytes.get(name, self.default_weight_bytes)

    def numbers(self, op: Op) -> str | None:
        """In which number format an op is computed; None: in the device's usual one."""
        match op:
            case Attend():
                return self.attention
            case Linear():
                return self.compute.get(op.weight, self.default_compute)
            case Experts():
                return self.compute.get(op_weights(op)[0], self.default_compute)
            case _:
                return None

    def cache(self, group: GroupId) -> float:
        return self.cache_bytes.get(group, self.default_cache_bytes)


@dataclass(frozen=True, slots=True)
class Parallel:
    """Over how many devices the program is cut. Costs are then those of one device."""

    tensor: int = 1


@dataclass(frozen=True, slots=True)
class OpCost:
    """One op of a span kind, for one of the `count` spans of that kind.

    A product is [m, k] x [k, n]; other ops have their rows in m, their width in n and 0 in k. `worst_factor` times
    `weight_bytes` is what the op reads if its rows choose as many experts as they can.
    """

    span_kind: str
    count: int
    kind: str
    m: int
    n: int
    k: int
    flops: float
    weight_bytes: float
    cache_read: float
    cache_write: float
    activation_bytes: float
    comm_bytes: float
    worst_factor: float = 1.0
    numbers: str | None = None
    """The format in which it is computed; None: the device's usual one."""


@dataclass(frozen=True, slots=True)
class OpRates:
    """What one op costs per row, per chunk and once. `m_per_row`: rows of its product for each row of the step."""

    op: Op
    space: Space
    n: int
    k: int = 0
    m_per_row: int = 1
    flops: float = 0.0
    weights_once: float = 0.0
    weights_per_row: float = 0.0
    state_per_chunk: float = 0.0
    """Cache bytes read, and written again, for each chunk, and written once more for each snapshot."""
    cache_write: float = 0.0
    activations: float = 0.0
    comm: float = 0.0
    kv_token_bytes: float = 0.0
    """Bytes of keys and values of one token in one layer."""
    num_keys: int | None = None
    """Keys of an op that sees all; None: the rows of its own chunk."""
    numbers: str | None = None


@dataclass(frozen=True, slots=True)
class KindRates:
    kind: str
    count: int
    rates: tuple[OpRates, ...]


class Seen(NamedTuple):
    """What the rows of a step see in one layer of an attention. Those of two steps add up to those of both in one."""

    visible: int
    """Keys of each row of chunks of several rows, summed."""
    passed: float
    """Keys that such chunks read, each as often as it is read."""
    single: int
    """Keys of rows that are their chunk's only one."""

    def beside(self, other: Seen) -> Seen:
        return Seen(self.visible + other.visible, self.passed + other.passed, self.single + other.single)


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """What `CostSheet.costs` gives for an attention in `count` layers, as factors of what rows see."""

    rates: OpRates
    op: Attend
    count: int
    formats: Formats

    @property
    def visibility(self) -> Visibility:
        return self.op.visibility

    def seen(self, chunks: Sequence[ChunkShape]) -> Seen:
        return _seen(self.rates, self.op, chunks, self.formats)

    def cost(self, seen: Seen, rows: int) -> tuple[float, float]:
        """(flops, bytes) of all layers."""
        flops, read = _attention(self.rates, self.op, seen, self.formats)
        moved = read + self.rates.activations * rows
        weights = self.rates.weights_once if rows else 0.0
        return self.count * flops, self.count * (moved + weights)


@dataclass(frozen=True, slots=True)
class CostSheet:
    """A program with its formats, ready to be priced for many shapes. Keep it: making one walks the whole program."""

    formats: Formats
    kinds: tuple[KindRates, ...]

    def costs(self, shape: StepShape) -> tuple[OpCost, ...]:
        """One record for each op of each span kind, kinds in order of first appearance."""
        rows = {
            Space.TOKENS: shape.num_tokens,
            Space.ENCODER: shape.num_tokens,
            Space.OUTPUTS: shape.num_outputs,
        }
        return tuple(
            _op_cost(rates, kind, rows[rates.space], shape, self.formats) for kind in self.kinds for rates in kind.rates
        )

    def attention(self) -> tuple[AttentionRates, ...]:
        """In the order in which `costs` has them."""
        return tuple(
            AttentionRates(rates, rates.op, kind.count, self.formats)
            for kind in self.kinds
            for rates in kind.rates
            if isinstance(rates.op, Attend)
        )


def cost_sheet(program: ProgramParts, formats: Formats | None = None, parallel: Parallel | None = None) -> CostSheet:
    """Price `program`, or one rank's part of it, with numbers stored as `formats` says."""
    formats = formats or Formats()
    program = shard(program, parallel.tensor) if parallel and parallel.tensor > 1 else program
    spans: dict[tuple[str, tuple[str | None, ...]], list[Sequence[Op]]] = {}
    for span in program.spans:
        ops = program.ops_of(span)
        # Layers whose kernels differ are priced apart: a sum of times at two rates is not a time at their mean.
        spans.setdefault((span.kind, tuple(map(formats.numbers, ops))), []).append(ops)
    kinds = [
        KindRates(
            kind,
            len(layers),
            tuple(
                replace(_rates(program, same, formats), numbers=formats.numbers(same[0]))
                for same in zip(*layers, strict=True)
            ),
        )
        for (kind, _), layers in spans.items()
    ]
    return CostSheet(formats, tuple(kinds))


def read_bytes(program: ProgramParts, ctx: int, formats: Formats | None = None) -> tuple[float, ...]:
    """Cache bytes that a decode row reads from each group when its context, itself included, has `ctx` tokens."""
    formats = formats or Formats()
    read = [0.0] * len(program.cache_groups)
    if ctx < 1:
        return tuple(read)
    for op in program.ops:
        if isinstance(op, Attend) and op.group is not None:
            group = program.cache_groups[op.group]
            keys = op.visibility.union(ctx - 1, 1, group.max_rows)
            read[op.group] += keys * op.kv_heads * (op.head_dim_k + op.head_dim_v) * formats.cache(op.group)
        elif isinstance(op, Conv | Shift | Scan):
            part = program.cache_groups[op.group].state_parts[op.part]
            read[op.group] += part * formats.cache(op.group)
    return tuple(read)


def held_bytes(program: ProgramParts, ctx: int, formats: Formats | None = None) -> tuple[float, ...]:
    """Cache bytes that a running sequence of `ctx` tokens must keep in each group."""
    formats = formats or Formats()
    return tuple(group.held_bytes(ctx, formats.cache(group.id)) for group in program.cache_groups)


def _op_cost(rates: OpRates, kind: KindRates, rows: int, shape: StepShape, formats: Formats) -> OpCost:
    flops, read, worst = rates.flops * rows, 0.0, 1.0
    weights = rates.weights_once + rates.weights_per_row * rows if rows else 0.0
    state = rates.state_per_chunk * len(shape.chunks)
    match rates.op:
        case Attend() as op:
            flops, read = _attention(rates, op, _seen(rates, op, shape.chunks, formats), formats)
        case Experts() as op:
            chosen = op.experts * (1.0 - (1.0 - op.top_k / op.experts) ** rows)
            weights = rates.weights_once * chosen / op.experts
            worst = max(1.0, min(op.experts, rows * op.top_k) / chosen) if rows else 1.0
        case _:
            pass
    return OpCost(
        kind.kind,
        kind.count,
        op_name(rates.op),
        rows * rates.m_per_row,
        rates.n,
        rates.k,
        flops,
        weights,
        read + state,
        rates.cache_write * rows + state + rates.state_per_chunk * shape.num_snapshots,
        rates.activations * rows,
        rates.comm * rows,
        worst,
        rates.numbers,
    )


def _attention(rates: OpRates, op: Attend, seen: Seen, formats: Formats) -> tuple[float, float]:
    """(flops, cache bytes read) over all chunks."""
    passed = seen.passed + seen.single * _passes(op, 1, formats) if seen.single else seen.passed
    return _key_flops(op) * (seen.visible + seen.single), passed * rates.kv_token_bytes


def _seen(rates: OpRates, op: Attend, chunks: Sequence[ChunkShape], formats: Formats) -> Seen:
    """Over all chunks. Decode rows, of which there may be hundreds, are summed together."""
    visible, passed = 0, 0.0
    several: Sequence[ChunkShape] = chunks
    single = 0
    if op.visibility.reach is not Reach.ALL:
        slots = [chunk.start for chunk in chunks if chunk.num_tokens == 1]
        single = op.visibility.total_at(slots)
        several = () if len(slots) == len(chunks) else [chunk for chunk in chunks if chunk.num_tokens != 1]
    for chunk in several:
        num_keys = chunk.num_tokens if rates.num_keys is None else rates.num_keys
        visible += op.visibility.total(chunk.start, chunk.num_tokens, num_keys)
        keys = op.visibility.union(chunk.start, chunk.num_tokens, num_keys)
        passed += keys * _passes(op, chunk.num_tokens, formats)
    return Seen(visible, passed, single)


def _key_flops(op: Attend) -> float:
    """Of one row and one key that it sees: a product with the key and one with the value, in every head."""
    return 2.0 * op.heads * (op.head_dim_k + op.head_dim_v)


def _passes(op: Attend, num_tokens: int, formats: Formats) -> float:
    """How often a chunk's keys are read: once for each row tile, less what a near cache saves, at least once."""
    tiles = ceil(op.heads // op.kv_heads * num_tokens / formats.attention_tile_rows)
    return max(1.0, tiles / formats.attention_reuse)


def _rates(program: ProgramParts, layers: Sequence[Op], formats: Formats) -> OpRates:
    """Rates of the op that stands at the same place in every span of a kind: `layers` are its copies."""
    op = layers[0]
    values, a = program.values, formats.activation_bytes
    ins = [values[value].width for value in op.inputs]
    out = ins[0] if op.output is None else values[op.output].width
    space = values[op.inputs[0]].space if op.inputs else Space.TOKENS
    stored = _stored_bytes(program, layers, formats)
    moved = (sum(ins) + (0 if op.output is None else out)) * a
    match op:
        case Embed():
            entries = program.weights[op.table].shape[0]
            return OpRates(op, space, out, weights_per_row=stored / entries, activations=moved)
        case Norm():
            numbers = sum(program.weights[name].num_elements for name in op_weights(op))
            return OpRates(op, space, out, flops=5.0 * out, weights_once=numbers * a, activations=moved)
        case Linear():
            return OpRates(op, space, out, ins[0], flops=2.0 * ins[0] * out, weights_once=stored, activations=moved)
        case Rope():
            return OpRates(op, space, out, flops=3.0 * out, activations=moved)
        case CacheWrite():
            return OpRates(op, space, sum(ins), cache_write=sum(ins) * formats.cache(op.group), activations=moved)
        case Attend():
            return _attend_rates(program, op, space, out, stored, formats)
        case Glu() | Act():
            return OpRates(op, space, out, flops=float(ACTIVATION_FLOPS[op.activation] * out), activations=moved)
        case Add() | Mul() | Scale() | Pool() | Tap():
            return OpRates(op, space, out, flops=float(out), activations=moved)
        case Conv() | Shift() | Scan():
            return _state_rates(program, op, out, stored, moved, formats)
        case Route():
            flops = float(ROUTE_FLOPS * op.experts)
            return OpRates(op, space, out, flops=flops, weights_once=stored, activations=moved)
        case Experts():
            return _experts_rates(op, space, ins[0], stored, a)
        case Sample():
            return OpRates(op, space, out, flops=4.0 * out, activations=float(out * LOGIT_BYTES))
        case Place():
            return OpRates(op, space, out, activations=moved)
        case Select():
            return OpRates(op, Space.OUTPUTS, out, activations=moved)
        case AllReduce():
            return OpRates(op, space, out, comm=2.0 * (op.ranks - 1) / op.ranks * out * a)


def _stored_bytes(program: ProgramParts, layers: Sequence[Op], formats: Formats) -> float:
    """Bytes of the op's weights, the mean over its copies."""
    total = sum(program.weights[name].num_elements * formats.weight(name) for op in layers for name in op_weights(op))
    return total / len(layers)


def _attend_rates(
    program: ProgramParts, op: Attend, space: Space, out: int, stored: float, formats: Formats
) -> OpRates:
    moved = op.heads * (op.head_dim_k + op.head_dim_v) * formats.activation_bytes
    if op.group is None:
        return OpRates(op, space, out, weights_once=stored, activations=moved)
    group = program.cache_groups[op.group]
    token_bytes = op.kv_heads * (op.head_dim_k + op.head_dim_v) * formats.cache(op.group)
    return OpRates(
        op,
        space,
        out,
        weights_once=stored,
        activations=moved,
        kv_token_bytes=token_bytes,
        num_keys=group.max_rows,
    )


def _state_rates(
    program: ProgramParts, op: Conv | Shift | Scan, out: int, stored: float, moved: float, formats: Formats
) -> OpRates:
    state = program.cache_groups[op.group].state_parts[op.part]
    match op:
        case Conv():
            flops = 2.0 * out * op.width
        case Shift():
            flops = 2.0 * out + state
        case Scan():
            flops = float(SCAN_FLOPS[op.kind] * op.state_elements)
    state_bytes = state * formats.cache(op.group)
    return OpRates(
        op, Space.TOKENS, out, flops=flops, weights_once=stored, state_per_chunk=state_bytes, activations=moved
    )


def _experts_rates(op: Experts, space: Space, hidden: int, stored: float, a: float) -> OpRates:
    return OpRates(
        op,
        space,
        op.ffn_hidden,
        hidden,
        m_per_row=op.top_k,
        flops=6.0 * op.top_k * hidden * op.ffn_hidden,
        weights_once=stored,
        activations=op.top_k * (hidden + 2 * op.ffn_hidden) * a,
    )
