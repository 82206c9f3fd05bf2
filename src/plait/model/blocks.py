"""Blocks: the few groups of ops that most families share, a few lines each, and the frame around a decoder's layers.

Owns no operation: executors and prices know only the ops that attention and an MLP are composed of. Where norms stand
and what is added to the residual is a family's business.
Invariant: one cache group for each distinct visibility, and spans of one kind differ in weight names and slots alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.model_config import ModelConfig
from plait.model.ops import NormKind, ValueId
from plait.model.program import GroupKind, Program
from plait.model.visibility import Reach, Visibility

_KINDS = {Reach.CAUSAL: GroupKind.FULL, Reach.WINDOW: GroupKind.WINDOW, Reach.CHUNK: GroupKind.CHUNKED}


class QkNorm(StrEnum):
    """How queries and keys are normalised before they are rotated (weights `.q_norm` and `.k_norm`)."""

    NONE = "none"
    HEADS = "heads"
    """Each head for itself, all with the same weight."""
    WIDTH = "width"
    """All heads together."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer being written: its blocks take a value and return another, and add nothing to a residual."""

    b: ProgramBuilder
    config: ModelConfig
    number: int
    group: GroupId
    slot: int

    @property
    def name(self) -> str:
        return f"layers.{self.number}"

    def norm(self, x: ValueId, name: str) -> ValueId:
        return norm(self.b, self.config, x, f"{self.name}.{name}")

    def attention(self, x: ValueId, qk_norm: QkNorm = QkNorm.NONE) -> ValueId:
        """o(attend(rope(q), rope(k), v)) of x."""
        b, config = self.b, self.config
        rope = config.rope_of(self.number)
        q = self._projection(x, "q", config.num_heads)
        k = self._projection(x, "k", config.num_kv_heads)
        v = self._projection(x, "v", config.num_kv_heads)
        if qk_norm is not QkNorm.NONE:
            q, k = self._head_norm(q, "q_norm", qk_norm), self._head_norm(k, "k_norm", qk_norm)
        if rope is not None:
            q = b.rope(q, rope, config.num_heads, mscale=rope.magnitude)
            k = b.rope(k, rope, config.num_kv_heads, mscale=rope.magnitude)
        b.cache_write(k, v, self.group, self.slot)
        y = b.attend(
            q,
            self.group,
            self.slot,
            config.num_heads,
            scale=config.attention_scale,
            visibility=config.layer_visibility[self.number],
            softcap=config.attention_softcap,
            sinks=f"{self.name}.sinks" if config.sinks else None,
        )
        return self._linear(y, "o", config.hidden, config.out_bias, shard_axis=1)

    def gated_mlp(self, x: ValueId) -> ValueId:
        """down(activation(gate) * up) of x."""
        config, bias = self.config, self.config.mlp_bias
        gate = self._linear(x, "gate", config.ffn_hidden, bias, shard_axis=0)
        up = self._linear(x, "up", config.ffn_hidden, bias, shard_axis=0)
        return self._linear(self.b.glu(gate, up, config.activation), "down", config.hidden, bias, shard_axis=1)

    def mlp(self, x: ValueId) -> ValueId:
        """down(activation(up)) of x."""
        config, bias = self.config, self.config.mlp_bias
        up = self._linear(x, "up", config.ffn_hidden, bias, shard_axis=0)
        return self._linear(self.b.act(up, config.activation), "down", config.hidden, bias, shard_axis=1)

    def add(self, residual: ValueId, y: ValueId) -> ValueId:
        return self.b.add(residual, y, factor=self.config.residual_scale)

    def _projection(self, x: ValueId, name: str, heads: int) -> ValueId:
        return self._linear(x, name, heads * self.config.head_dim, self.config.qkv_bias, shard_axis=0)

    def _linear(self, x: ValueId, name: str, width: int, bias: bool, *, shard_axis: int) -> ValueId:
        weight = f"{self.name}.{name}"
        of_bias = f"{weight}_bias" if bias else None
        return self.b.linear(x, weight, width, bias=of_bias, adaptable=True, shard_axis=shard_axis)

    def _head_norm(self, x: ValueId, name: str, qk_norm: QkNorm) -> ValueId:
        parts = self.b.width(x) // self.config.head_dim if qk_norm is QkNorm.HEADS else 1
        offset, eps = self.config.norm_offset, self.config.norm_eps
        return self.b.norm(x, f"{self.name}.{name}", eps, offset=offset, parts=parts)


LayerWriter: TypeAlias = Callable[[Layer, ValueId], ValueId]
"""Writes a layer over a residual; returns the next one."""


def decoder(config: ModelConfig, write: LayerWriter) -> Program:
    """Embedding, layers, norm and head of a decoder-only model."""
    b = ProgramBuilder(config.family)
    groups = _declare_groups(b, config)
    b.span("embed", "embed")
    x = b.embed("embed", config.table_rows, config.hidden, scale=config.embed_scale)
    used = dict.fromkeys(groups, 0)
    for i, visibility in enumerate(config.layer_visibility):
        b.span(f"layers.{i}", _kind(config, i))
        x = write(Layer(b, config, i, groups[visibility], used[visibility]), x)
        used[visibility] += 1
    b.span("head", "head")
    x = norm(b, config, b.select(x), "final_norm")
    logits = b.linear(x, "embed" if config.tied_embeddings else "head", config.table_rows, shard_axis=0)
    b.sample(logits, vocab_size=config.vocab_size, logit_scale=config.logit_scale, softcap=config.logit_softcap)
    return b.finish()


def norm(b: ProgramBuilder, config: ModelConfig, x: ValueId, weight: str) -> ValueId:
    bias = f"{weight}_bias" if config.norm_kind is NormKind.LAYER else None
    return b.norm(x, weight, config.norm_eps, kind=config.norm_kind, bias=bias, offset=config.norm_offset)


def _kind(config: ModelConfig, layer: int) -> str:
    visibility = config.layer_visibility[layer]
    seen = "" if visibility.reach is Reach.CAUSAL else f" {visibility.reach} {visibility.size}"
    dense = config.mixture is not None and layer in config.mixture.dense_layers
    return f"layer{seen}" + (" unrotated" if layer in config.unrotated_layers else "") + (" dense" if dense else "")


def _declare_groups(b: ProgramBuilder, config: ModelConfig) -> dict[Visibility, GroupId]:
    counts: dict[Visibility, int] = {}
    for visibility in config.layer_visibility:
        counts[visibility] = counts.get(visibility, 0) + 1
    return {
        visibility: b.kv_group(
            f"{_KINDS[visibility.reach]} {visibility.size}" if visibility.size else "full",
            layers,
            config.num_kv_heads,
            config.head_dim,
            _KINDS[visibility.reach],
            visibility.size,
        )
        for visibility, layers in counts.items()
    }
