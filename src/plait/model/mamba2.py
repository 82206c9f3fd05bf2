"""Mamba-2: the sizes of its layers, their states, and the mixer that stands where attention would.

Owns the mixer's operations (Dao and Gu, "Transformers are SSMs", 2024, section 7) and what a sequence keeps of a layer.
Which layers are such, and what stands around them, is a family's business.
Invariant: a layer's state is that of its convolution, then that of its scan.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.ops import Activation, ScanKind, ValueId
from plait.model.parts import CacheGroup, GroupKind


@dataclass(frozen=True, slots=True)
class Mamba2:
    """`layers` are those that mix so; the others attend."""

    layers: tuple[int, ...]
    heads: int
    head_dim: int
    state_dim: int
    groups: int
    """Heads of a group share B and C, and their columns are normalised together."""
    conv_width: int
    conv_bias: bool = True
    projection_bias: bool = False

    @property
    def inner(self) -> int:
        """Columns of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Columns that go through the convolution: those of the heads, then B, then C."""
        return self.inner + 2 * self.groups * self.state_dim

    def fault(self, num_layers: int) -> str | None:
        if self.heads % self.groups:
            return f"{self.heads} state heads do not share {self.groups} groups evenly"
        if any(layer >= num_layers for layer in self.layers):
            return f"layer {max(self.layers)} is said to keep a state, but there are {num_layers}"
        return None

    def cache_group(self) -> CacheGroup:
        parts = (self.channels * (self.conv_width - 1), self.inner * self.state_dim)
        return CacheGroup(GroupId(0), "mamba2", GroupKind.STATE, len(self.layers), state_parts=parts)


def mixer(
    b: ProgramBuilder, sizes: Mamba2, layer: str, group: GroupId, slot: int, x: ValueId, *, width: int, eps: float
) -> ValueId:
    """out(norm(scan(conv(in(x))) * silu(z(x)))) of x, `width` columns wide. `layer`: of the weights' names."""

    def projection(name: str, columns: int) -> ValueId:
        weight = f"{layer}.{name}"
        bias = f"{weight}_bias" if sizes.projection_bias else None
        return b.linear(x, weight, columns, bias=bias, adaptable=True, shard_axis=0)

    gate, mixed, dt = projection("z", sizes.inner), projection("xbc", sizes.channels), projection("dt", sizes.heads)
    conv_bias = f"{layer}.conv_bias" if sizes.conv_bias else None
    rows = b.conv(
        mixed, f"{layer}.conv", sizes.conv_width, group, slot, part=0, bias=conv_bias, activation=Activation.SILU
    )
    shared = sizes.groups * sizes.state_dim
    inputs = (
        b.view(rows, 0, sizes.inner, "x"),
        dt,
        b.view(rows, sizes.inner, shared, "B"),
        b.view(rows, sizes.inner + shared, shared, "C"),
    )
    weights = {f"{layer}.{name}": (sizes.heads,) for name in ("a_log", "d", "dt_shift")}
    dims = (sizes.heads, sizes.head_dim, sizes.state_dim)
    y = b.scan(inputs, ScanKind.MAMBA2, weights, dims, group, slot, part=1, groups=sizes.groups)
    y = b.norm(b.glu(gate, y, Activation.SILU), f"{layer}.mixer_norm", eps, parts=sizes.groups, own_weights=True)
    out_bias = f"{layer}.out_bias" if sizes.projection_bias else None
    return b.linear(y, f"{layer}.out", width, bias=out_bias, adaptable=True, shard_axis=1)
