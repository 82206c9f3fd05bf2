"""The mixtral family: llama in which every layer's MLP is a choice of experts.

Owns its order of operations and its readers. Its GGUF files say llama, and that there are experts.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import Layer, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.mixture import mixture_from_gguf, mixture_from_hf, mixture_or_mlp
from plait.model.model_config import ModelConfig
from plait.model.ops import ValueId
from plait.model.program import Program


EXPERTS = 8
"""Where a file does not say."""


def mixtral_program(config: ModelConfig) -> Program:
    return decoder(config, mixtral_layer)


def mixtral_layer(layer: Layer, x: ValueId) -> ValueId:
    x = layer.add(x, layer.attention(layer.norm(x, "attn_norm")))
    return layer.add(x, mixture_or_mlp(layer, layer.norm(x, "ffn_norm")))


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("mixtral", facts, has_experts=True)
    seen = hf_reading.visibilities(plain, hf_reading.window_size(facts), lambda _: True)
    return replace(plain, layer_visibility=seen, mixture=mixture_from_hf(facts, "intermediate_size", EXPERTS))


def from_gguf(model: GgufModel) -> ModelConfig:
    plain = gguf_reading.plain_config("mixtral", model, has_experts=True)
    seen = gguf_reading.windowed_layers(model, plain, lambda _: True)
    return replace(plain, layer_visibility=seen, mixture=mixture_from_gguf(model, plain.ffn_hidden))


DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "num_experts_per_tok": 2,
}

MIXTRAL = Family("mixtral", mixtral_program, HfForm("MixtralForCausalLM", DEFAULTS, from_hf))
