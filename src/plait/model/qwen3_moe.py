"""The qwen3_moe family: Qwen 3 in which a layer's MLP is a choice of experts, but for layers that the file names.

Owns its order of operations and its readers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import Layer, QkNorm, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.limits import MAX_LAYERS
from plait.model.mixture import mixture_from_gguf, mixture_from_hf, mixture_or_mlp
from plait.model.model_config import ModelConfig
from plait.model.ops import ValueId
from plait.model.program import Program


EXPERTS = 128
"""Where a file does not say."""


def qwen3_moe_program(config: ModelConfig) -> Program:
    return decoder(config, _layer)


def _layer(layer: Layer, x: ValueId) -> ValueId:
    x = layer.add(x, layer.attention(layer.norm(x, "attn_norm"), QkNorm.HEADS))
    return layer.add(x, mixture_or_mlp(layer, layer.norm(x, "ffn_norm")))


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("qwen3_moe", facts, has_experts=True)
    bias = facts.flag("attention_bias", False)
    size = hf_reading.window_size(facts) if facts.flag("use_sliding_window", False) else None
    mixture = replace(
        mixture_from_hf(facts, "moe_intermediate_size", EXPERTS),
        normalize=facts.flag("norm_topk_prob", False),
        dense_layers=_dense_layers(facts, plain.num_layers),
    )
    return replace(
        plain,
        qkv_bias=bias,
        out_bias=bias,
        layer_visibility=hf_reading.visibilities(plain, size, lambda _: True),
        mixture=mixture,
    )


def _dense_layers(facts: Facts, num_layers: int) -> tuple[int, ...]:
    """Those that the file names, and all but every `decoder_sparse_step`-th."""
    named = facts.values.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        raise facts.error("mlp_only_layers is no list of layers")
    every = facts.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    return tuple(layer for layer in range(num_layers) if layer in named or (layer + 1) % every)


def from_gguf(model: GgufModel) -> ModelConfig:
    """Its files do not say whether weights sum to 1: all models that there are do it so."""
    plain = gguf_reading.plain_config("qwen3_moe", model, has_experts=True)
    return replace(plain, mixture=mixture_from_gguf(model, plain.ffn_hidden))


DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
}

QWEN3_MOE = Family(
    "qwen3_moe", qwen3_moe_program, HfForm("Qwen3MoeForCausalLM", DEFAULTS, from_hf), from_gguf, gguf_name="qwen3moe"
)
