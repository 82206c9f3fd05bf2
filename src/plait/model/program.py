"""Programs: what a model computes, as operations over named weights and cache groups.

Owns `Program` and its parts. Every executor runs one, `Program.cost` prices it, and nothing else describes a model.
Invariant: a validated program defines every value before its use, its spans cover its ops exactly, and spans of one
kind are equal up to weight names and cache slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from plait.core.ids import GroupId
from plait.core.step import StepShape
from plait.model.checks import check_program
from plait.model.cost import Formats, OpCost, Parallel, cost_sheet
from plait.model.ops import Op, Sample, Value, ValueId


class WeightRole(StrEnum):
    """What a weight is for: which number formats suit it, and whether it is looked up or multiplied."""

    EMBEDDING = "embedding"
    """A table that is looked up; also the head's matrix where the two are tied."""
    LINEAR = "linear"
    NORM = "norm"
    BIAS = "bias"
    ROUTER = "router"
    EXPERTS = "experts"
    CONV = "conv"
    SCAN = "scan"
    SINKS = "sinks"


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight without its numbers. `shard_axis` is the axis that tensor parallelism cuts; None: every rank holds all
    of it.
    """

    name: str
    shape: tuple[int, ...]
    role: WeightRole
    shard_axis: int | None = None

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


class GroupKind(StrEnum):
    """How the memory of a cache group grows with a sequence."""

    FULL = "full"
    """Keys and values of every token."""
    WINDOW = "window"
    """Keys and values of the last `window` tokens."""
    CHUNKED = "chunked"
    """Keys and values of the current stretch of `window` tokens."""
    STATE = "state"
    """One state per sequence, whatever its length."""
    CROSS = "cross"
    """Keys and values of encoder rows, `max_rows` at most; constant while a sequence grows."""
    EMBEDDING = "embedding"
    """Encoder rows until they are consumed: one head of `head_dim_k` columns, no values."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share block tables. `num_layers` counts layers that store; others may read the same (group, slot)."""

    id: GroupId
    name: str
    kind: GroupKind
    num_layers: int
    num_kv_heads: int = 0
    head_dim_k: int = 0
    head_dim_v: int = 0
    window: int = 0
    """Tokens a WINDOW or CHUNKED group needs at most."""
    state_parts: tuple[int, ...] = ()
    """Elements of each part of a STATE group's state, per layer (a convolution's tail, a scan's matrix)."""
    max_rows: int = 0
    """Encoder rows a sequence may hold in a CROSS or EMBEDDING group."""

    @property
    def is_state(self) -> bool:
        return self.kind is GroupKind.STATE

    @property
    def elements_per_token(self) -> int:
        """Numbers kept per token by all layers together; 0 for states."""
        return self.num_layers * self.num_kv_heads * (self.head_dim_k + self.head_dim_v)

    @property
    def elements_per_state(self) -> int:
        """Numbers in one sequence's state, all layers together; 0 unless the group keeps states."""
        return self.num_layers * sum(self.state_parts)

    def bytes_per_token(self, dtype_bytes: float) -> float:
        return self.elements_per_token * dtype_bytes

    def held_tokens(self, ctx: int) -> int:
        """Tokens whose entries a sequence of `ctx` tokens still needs."""
        match self.kind:
            case GroupKind.FULL:
                return ctx
            case GroupKind.WINDOW:
                return min(ctx, self.window)
            case GroupKind.CHUNKED:
                return (ctx - 1) % self.window + 1 if ctx > 0 else 0
            case GroupKind.CROSS:
                return self.max_rows
            case _:
                return 0

    def held_bytes(self, ctx: int, dtype_bytes: float) -> float:
        """Bytes that a running sequence of `ctx` tokens must keep. EMBEDDING: 0, its rows are consumed by the
        prompt.
        """
        if self.is_state:
            return self.elements_per_state * dtype_bytes
        return self.held_tokens(ctx) * self.bytes_per_token(dtype_bytes)


@dataclass(frozen=True, slots=True)
class Span:
    """Ops `first` to `last`, both included: usually one layer. `live_out` are the values that later spans still need,
    ascending.

    Spans of one `kind` have equal ops up to weight names and cache slots, so they are priced once; a lane may be
    suspended at a span's end, keeping exactly `live_out`.
    """

    name: str
    kind: str
    first: int
    last: int
    live_out: tuple[ValueId, ...]
    groups: tuple[GroupId, ...]

    @property
    def num_ops(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Program:
    """A model as data. `values[v]` has id v, `cache_groups[g]` has id g. `inputs` are values the executor fills before
    the first op.
    """

    name: str
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    spans: tuple[Span, ...]
    weights: Mapping[str, WeightSpec]
    cache_groups: tuple[CacheGroup, ...]
    inputs: tuple[ValueId, ...] = ()

    def validate(self) -> None:
        """Raise `InvariantError` for the first contradiction."""
        check_program(self)

    def ops_of(self, span: Span) -> tuple[Op, ...]:
        return self.ops[span.first : span.last + 1]

    @property
    def vocab_size(self) -> int:
        """Width of the logits; 0 for a program that samples nothing."""
        widths = [self.values[op.inputs[0]].width for op in self.ops if isinstance(op, Sample)]
        return max(widths, default=0)

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights; a weight used twice counts once."""
        return sum(spec.num_elements for spec in self.weights.values())

    def cost(
        self, shape: StepShape, formats: Formats | None = None, parallel: Parallel | None = None
    ) -> tuple[OpCost, ...]:
        """What a step of this shape costs, op by op, every span kind once with its count.

        Whoever prices many shapes keeps a `cost_sheet`; this makes one for each call.
        """
        return cost_sheet(self, formats, parallel).costs(shape)


def expected_weights(program: Program) -> dict[str, tuple[int, ...]]:
    """Shape of every weight that a model file must bring, by canonical name, in order of first use."""
    return {name: spec.shape for name, spec in program.weights.items()}
