"""The gpt_oss family: GPT-OSS. Windows in every other layer, attention sinks, experts with biases and a clamped gate.

Owns its order of operations and its readers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.limits import MAX_SCALING, MIN_SCALING
from plait.model.mixtral import mixtral_layer
from plait.model.mixture import mixture_from_gguf, mixture_from_hf
from plait.model.model_config import ModelConfig
from plait.model.ops import ClampedSwish
from plait.model.program import Program
from plait.model.rope import RopeSpec, YarnScaling

GATE = ClampedSwish(alpha=1.702, limit=7.0)
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
EXPERTS = 128
"""Where a file does not say."""
EVERY = 2
"""The last of so many layers sees everything."""


def gpt_oss_program(config: ModelConfig) -> Program:
    return decoder(config, mixtral_layer)


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("gpt_oss", _with_rope(facts), has_experts=True)
    bias = facts.flag("attention_bias", True)
    gate = ClampedSwish(
        facts.number("swiglu_alpha", MIN_SCALING, MAX_SCALING, GATE.alpha),
        facts.number("swiglu_limit", MIN_SCALING, MAX_SCALING, GATE.limit),
    )
    mixture = mixture_from_hf(facts, "intermediate_size", EXPERTS)
    size = hf_reading.window_size(facts)
    return replace(
        plain,
        qkv_bias=bias,
        out_bias=bias,
        sinks=True,
        layer_visibility=hf_reading.windowed_layers(facts, plain, size, _windowed),
        mixture=replace(mixture, bias=True, clamped=gate),
    )


def _with_rope(facts: Facts) -> Facts:
    """A file that says nothing about positions has the scaling that the model was made with."""
    if facts.has("rope_parameters") or facts.has("rope_scaling"):
        return facts
    return Facts(facts.source, {**facts.values, "rope_scaling": ROPE})


def _windowed(layer: int) -> bool:
    return (layer + 1) % EVERY != 0


def from_gguf(model: GgufModel) -> ModelConfig:
    """Its files do not say what the model was made with: Yarn's pairs are not rounded, the gate is clamped at 7."""
    plain = gguf_reading.plain_config("gpt_oss", model, has_experts=True)
    mixture = mixture_from_gguf(model, plain.ffn_hidden)
    return replace(
        plain,
        rope=_unrounded(plain.rope),
        sinks=True,
        layer_visibility=gguf_reading.windowed_layers(model, plain, _windowed),
        mixture=replace(mixture, bias=True, clamped=GATE),
    )


def _unrounded(rope: RopeSpec) -> RopeSpec:
    return replace(rope, scaling=replace(rope.scaling, whole=False)) if isinstance(rope.scaling, YarnScaling) else rope


DEFAULTS = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "tie_word_embeddings": False,
    "sliding_window": 128,
    "num_experts_per_tok": 4,
}

GPT_OSS = Family(
    "gpt_oss", gpt_oss_program, HfForm("GptOssForCausalLM", DEFAULTS, from_hf), from_gguf, gguf_name="gpt-oss"
)
