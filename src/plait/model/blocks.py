"""Blocks: the few groups of ops that most families share, a few lines each.

Owns no operation: executors and prices know only the ops that attention and a gated MLP are composed of.
Invariant: a block adds its result to the residual that it was given and returns the new residual.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.ops import Activation, ValueId
from plait.model.rope import RopeSpec
from plait.model.visibility import Visibility


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Facts of an attention block that are the same in every layer."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    norm_eps: float
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: bool = False
    """RMS norm of each head of q and k before rope (weights `.q_norm`, `.k_norm`)."""


def attention(
    b: ProgramBuilder,
    residual: ValueId,
    layer: str,
    shape: AttentionShape,
    visibility: Visibility,
    group: GroupId,
    slot: int,
) -> ValueId:
    """residual + o(attend(rope(q), rope(k), v)) of the normed residual."""

    def project(name: str, heads: int) -> ValueId:
        bias = f"{layer}.{name}_bias" if shape.qkv_bias else None
        return b.linear(x, f"{layer}.{name}", heads * shape.head_dim, bias=bias, adaptable=True, shard_axis=0)

    x = b.norm(residual, f"{layer}.attn_norm", shape.norm_eps)
    q, k, v = project("q", shape.heads), project("k", shape.kv_heads), project("v", shape.kv_heads)
    if shape.head_norm:
        q = b.norm(q, f"{layer}.q_norm", shape.norm_eps, parts=shape.heads)
        k = b.norm(k, f"{layer}.k_norm", shape.norm_eps, parts=shape.kv_heads)
    if shape.rope is not None:
        q, k = b.rope(q, shape.rope, shape.heads), b.rope(k, shape.rope, shape.kv_heads)
    b.cache_write(k, v, group, slot)
    y = b.attend(q, group, slot, shape.heads, visibility=visibility)
    bias = f"{layer}.o_bias" if shape.out_bias else None
    y = b.linear(y, f"{layer}.o", b.width(residual), bias=bias, adaptable=True, shard_axis=1)
    return b.add(residual, y)


def gated_mlp(
    b: ProgramBuilder,
    residual: ValueId,
    layer: str,
    ffn_hidden: int,
    activation: Activation,
    norm_eps: float,
    *,
    bias: bool = False,
) -> ValueId:
    """residual + down(activation(gate) * up) of the normed residual."""

    def project(of: ValueId, name: str, width: int, shard_axis: int) -> ValueId:
        named = f"{layer}.{name}_bias" if bias else None
        return b.linear(of, f"{layer}.{name}", width, bias=named, adaptable=True, shard_axis=shard_axis)

    x = b.norm(residual, f"{layer}.ffn_norm", norm_eps)
    y = b.glu(project(x, "gate", ffn_hidden, 0), project(x, "up", ffn_hidden, 0), activation)
    return b.add(residual, project(y, "down", b.width(residual), 1))
