"""Parts of a program: weights, cache groups and spans, and the sight of a program that its own functions have.

Owns what these small types say about themselves. `plait.model.program` gives them to other rooms; the Protocol is here
so that checks, costs and sharding, which `Program` calls, need not import it back.
Invariant: everything here is frozen, and nothing knows a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Protocol, Self

from plait.core.ids import GroupId
from plait.model.ops import Op, Value, ValueId


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
    """A weight without its numbers. Tensor parallelism cuts it along `shard_axis`; None: every rank holds all of it."""

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


OF_IMAGES = (GroupKind.CROSS, GroupKind.EMBEDDING)
"""Kinds that hold rows of an encoder."""


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
        """Bytes that a running sequence of `ctx` tokens must keep; images' rows are gone once the prompt is read."""
        if self.is_state:
            return self.elements_per_state * dtype_bytes
        return self.held_tokens(ctx) * self.bytes_per_token(dtype_bytes)


@dataclass(frozen=True, slots=True)
class Span:
    """Ops `first` to `last`, both included: usually one layer.

    Spans of one `kind` have equal ops up to weight names and cache slots, so they are priced once. A lane may be
    suspended at a span's end; it keeps exactly `live_out`, the values that later spans need, ascending.
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


class ProgramParts(Protocol):
    """What a program consists of. `plait.model.program.Program` is the only one."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def ops(self) -> tuple[Op, ...]:
        """In order of execution."""

    @property
    def values(self) -> tuple[Value, ...]:
        """By id."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """In order of execution."""

    @property
    def weights(self) -> Mapping[str, WeightSpec]:
        """By name, in order of first use."""

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """By id."""

    @property
    def inputs(self) -> tuple[ValueId, ...]:
        """Filled before the first op."""

    def ops_of(self, span: Span) -> tuple[Op, ...]:
        """The ops of a span."""

    def rebuilt(
        self,
        ops: tuple[Op, ...],
        values: tuple[Value, ...],
        spans: tuple[Span, ...],
        weights: Mapping[str, WeightSpec],
        cache_groups: tuple[CacheGroup, ...],
    ) -> Self:
        """The same program of other parts, validated."""
