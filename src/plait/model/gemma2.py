"""The gemma2 family: Gemma 2. Gemma with norms on both sides of attention and MLP, capped scores and logits, and a
window in every other layer.

Owns its order of operations and its readers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import Layer, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gemma import gemma_config, gemma_gguf_config
from plait.model.gguf_reading import GgufModel
from plait.model.limits import MAX_WIDTH, MIN_SCALING
from plait.model.model_config import ModelConfig
from plait.model.ops import ValueId
from plait.model.program import Program

LARGEST_LAYERS = 46
"""Layers of the 27B model, whose attention scale its GGUF files do not tell: it follows from hidden / heads there."""


def gemma2_program(config: ModelConfig) -> Program:
    return decoder(config, _layer)


def _layer(layer: Layer, x: ValueId) -> ValueId:
    y = layer.attention(layer.norm(x, "attn_norm"))
    x = layer.add(x, layer.norm(y, "attn_post_norm"))
    y = layer.gated_mlp(layer.norm(x, "ffn_norm"))
    return layer.add(x, layer.norm(y, "ffn_post_norm"))


def from_hf(facts: Facts) -> ModelConfig:
    config = capped_config("gemma2", facts)
    size = hf_reading.window_size(facts)
    return replace(config, layer_visibility=hf_reading.windowed_layers(facts, config, size, is_windowed))


def capped_config(family: str, facts: Facts) -> ModelConfig:
    """What Gemma 2 and later have."""
    return replace(
        gemma_config(family, facts, "hidden_activation"),
        attention_scale=facts.number("query_pre_attn_scalar", MIN_SCALING, MAX_WIDTH) ** -0.5,
        attention_softcap=hf_reading.softcap(facts, "attn_logit_softcapping"),
        logit_softcap=hf_reading.softcap(facts, "final_logit_softcapping"),
    )


def is_windowed(layer: int) -> bool:
    return layer % 2 == 0


def from_gguf(model: GgufModel) -> ModelConfig:
    config = gemma_gguf_config("gemma2", model)
    return replace(
        config,
        layer_visibility=gguf_reading.windowed_layers(model, config, is_windowed),
        attention_scale=gguf_attention_scale(config, LARGEST_LAYERS),
        attention_softcap=model.scale("attn_logit_softcapping", 50.0),
        logit_softcap=model.scale("final_logit_softcapping", 30.0),
    )


def gguf_attention_scale(config: ModelConfig, largest_layers: int) -> float:
    is_largest = config.num_layers == largest_layers
    return 1.0 / math.sqrt(config.hidden // config.num_heads if is_largest else config.head_dim)


DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}

GEMMA2 = Family("gemma2", gemma2_program, HfForm("Gemma2ForCausalLM", DEFAULTS, from_hf), from_gguf)
