"""The gemma3 family: the text models of Gemma 3. Gemma 2 with norms of each head of queries and keys, windows in five
layers of six, and a rotary table of their own for those.

Owns its order of operations and its readers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import Layer, QkNorm, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gemma import gemma_gguf_config
from plait.model.gemma2 import DEFAULTS as GEMMA2_DEFAULTS
from plait.model.gemma2 import capped_config, gguf_attention_scale
from plait.model.gguf_reading import GgufModel
from plait.model.hf_rope import rope_of
from plait.model.limits import MAX_LAYERS, MAX_SCALING, MAX_THETA, MIN_SCALING
from plait.model.model_config import ModelConfig
from plait.model.ops import ValueId
from plait.model.program import Program
from plait.model.rope import RopeSpec

LARGEST_LAYERS = 62
"""Layers of the 27B model, as in Gemma 2."""
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
GLOBAL_THETA_NAMES = ("rope.freq_base", "rope.global.freq_base")
LOCAL_THETA_NAMES = ("rope.freq_base_swa", "rope.local.freq_base")
"""The second names are those of files that Ollama made."""
EVERY = 6
"""The last of so many layers sees everything."""


def gemma3_program(config: ModelConfig) -> Program:
    return decoder(config, _layer)


def _layer(layer: Layer, x: ValueId) -> ValueId:
    y = layer.attention(layer.norm(x, "attn_norm"), QkNorm.HEADS)
    x = layer.add(x, layer.norm(y, "attn_post_norm"))
    y = layer.gated_mlp(layer.norm(x, "ffn_norm"))
    return layer.add(x, layer.norm(y, "ffn_post_norm"))


def from_hf(facts: Facts) -> ModelConfig:
    config = capped_config("gemma3", facts)
    every = facts.integer("sliding_window_pattern", 1, MAX_LAYERS, EVERY)
    size = hf_reading.window_size(facts)
    local = rope_of(
        facts,
        config.head_dim,
        config.max_positions,
        layers="sliding_attention",
        theta_key="rope_local_base_freq",
        default_theta=LOCAL_THETA,
        scaled=False,
    )
    seen = hf_reading.windowed_layers(facts, config, size, lambda layer: (layer + 1) % every != 0)
    return replace(config, local_rope=local, layer_visibility=seen)


def from_gguf(model: GgufModel) -> ModelConfig:
    config = gemma_gguf_config("gemma3", model)
    theta = next((model.number(name, 1.0, MAX_THETA) for name in GLOBAL_THETA_NAMES if model.has(name)), GLOBAL_THETA)
    local = next((model.number(name, 1.0, MAX_THETA) for name in LOCAL_THETA_NAMES if model.has(name)), LOCAL_THETA)
    cap = "final_logit_softcapping"
    return replace(
        config,
        layer_visibility=gguf_reading.windowed_layers(model, config, lambda layer: (layer + 1) % EVERY != 0),
        rope=replace(config.rope, theta=theta),
        local_rope=RopeSpec(local, config.rope.rotary_dim, config.max_positions),
        attention_scale=gguf_attention_scale(config, LARGEST_LAYERS),
        logit_softcap=model.number(cap, MIN_SCALING, MAX_SCALING) if model.has(cap) else None,
    )


DEFAULTS = {
    **GEMMA2_DEFAULTS,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": GLOBAL_THETA,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}

GEMMA3 = Family("gemma3", gemma3_program, HfForm("Gemma3ForCausalLM", DEFAULTS, from_hf), from_gguf)
