"""The llama family: Llama 2 and 3, SmolLM2, and everything built like them.

Owns the order of operations of a decoder-only model with rotary positions, grouped-query attention and a gated MLP.
"""

from __future__ import annotations

from plait.core.ids import GroupId
from plait.model.blocks import AttentionShape, attention, gated_mlp
from plait.model.builder import ProgramBuilder
from plait.model.config import ModelConfig
from plait.model.program import GroupKind, Program
from plait.model.visibility import Reach, Visibility

_KINDS = {Reach.CAUSAL: GroupKind.FULL, Reach.WINDOW: GroupKind.WINDOW, Reach.CHUNK: GroupKind.CHUNKED}


def llama_program(config: ModelConfig) -> Program:
    """One cache group and one kind of layer for each distinct visibility; most models have one of each."""
    b = ProgramBuilder(config.family)
    groups = _declare_groups(b, config)
    shape = AttentionShape(
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.rope,
        config.norm_eps,
        config.qkv_bias,
        config.out_bias,
    )
    b.span("embed", "embed")
    x = b.embed("embed", config.table_rows, config.hidden)
    used = dict.fromkeys(groups, 0)
    for i, visibility in enumerate(config.layer_visibility):
        layer = f"layers.{i}"
        b.span(layer, "layer" if visibility.reach is Reach.CAUSAL else f"layer {visibility.reach} {visibility.size}")
        x = attention(b, x, layer, shape, visibility, groups[visibility], used[visibility])
        x = gated_mlp(b, x, layer, config.ffn_hidden, config.activation, config.norm_eps, bias=config.mlp_bias)
        used[visibility] += 1
    b.span("head", "head")
    x = b.norm(b.select(x), "final_norm", config.norm_eps)
    logits = b.linear(x, "embed" if config.tied_embeddings else "head", config.table_rows, shard_axis=0)
    b.sample(logits, vocab_size=config.vocab_size)
    return b.finish()


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
