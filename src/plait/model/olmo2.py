"""The olmo2 family: OLMo 2 and 3. Llama whose norms stand behind attention and MLP, with one norm over all heads of
queries and one over those of keys. OLMo 3 has windows in three layers of four.

Owns its order of operations and its readers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import Layer, QkNorm, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.hf_rope import rope_of
from plait.model.llama import DEFAULTS as LLAMA_DEFAULTS
from plait.model.model_config import ModelConfig
from plait.model.ops import ValueId
from plait.model.program import Program

EVERY = 4
"""The last of so many layers sees everything, where there are windows."""


def olmo2_program(config: ModelConfig) -> Program:
    return decoder(config, _layer)


def _layer(layer: Layer, x: ValueId) -> ValueId:
    x = layer.add(x, layer.norm(layer.attention(x, QkNorm.WIDTH), "attn_post_norm"))
    return layer.add(x, layer.norm(layer.gated_mlp(x), "ffn_post_norm"))


def from_hf(facts: Facts) -> ModelConfig:
    return _plain("olmo2", facts)


def olmo3_from_hf(facts: Facts) -> ModelConfig:
    plain = _plain("olmo3", facts)
    local = rope_of(facts, plain.head_dim, plain.max_positions, layers="sliding_attention", scaled=False)
    size = hf_reading.window_size(facts)
    return replace(plain, local_rope=local, layer_visibility=hf_reading.windowed_layers(facts, plain, size, _windowed))


def _plain(family: str, facts: Facts) -> ModelConfig:
    bias = facts.flag("attention_bias", False)
    return replace(hf_reading.plain_config(family, facts), qkv_bias=bias, out_bias=bias)


def _windowed(layer: int) -> bool:
    return (layer + 1) % EVERY != 0


def from_gguf(model: GgufModel) -> ModelConfig:
    """OLMo 3's files say olmo2, too; their scaling is of the layers that see everything."""
    plain = gguf_reading.plain_config("olmo2", model)
    return replace(
        plain,
        layer_visibility=gguf_reading.windowed_layers(model, plain, _windowed),
        local_rope=replace(plain.rope, scaling=None),
    )


DEFAULTS = {**LLAMA_DEFAULTS, "vocab_size": 50304, "rms_norm_eps": 1e-5}
OLMO3_DEFAULTS = {**DEFAULTS, "sliding_window": 4096, "rope_theta": 500_000.0}

OLMO2 = Family("olmo2", olmo2_program, HfForm("Olmo2ForCausalLM", DEFAULTS, from_hf), from_gguf)
OLMO3 = Family("olmo3", olmo2_program, HfForm("Olmo3ForCausalLM", OLMO3_DEFAULTS, olmo3_from_hf))
