"""The llama family: Llama 2 and 3, SmolLM2, TinyLlama, and everything built like them.

Owns the order of operations of a decoder-only model with rotary positions, grouped-query attention and a gated MLP.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import Layer, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.mixtral import from_gguf as mixtral_from_gguf
from plait.model.model_config import ModelConfig
from plait.model.ops import ValueId
from plait.model.program import Program


def llama_program(config: ModelConfig) -> Program:
    """One cache group and one kind of layer for each distinct visibility; most models have one of each."""
    return decoder(config, llama_layer)


def llama_layer(layer: Layer, x: ValueId) -> ValueId:
    x = layer.add(x, layer.attention(layer.norm(x, "attn_norm")))
    return layer.add(x, layer.gated_mlp(layer.norm(x, "ffn_norm")))


def from_hf(facts: Facts) -> ModelConfig:
    bias = facts.flag("attention_bias", False)
    plain = hf_reading.plain_config("llama", facts)
    return replace(plain, qkv_bias=bias, out_bias=bias, mlp_bias=facts.flag("mlp_bias", False))


def from_gguf(model: GgufModel) -> ModelConfig:
    """Mistral's files say llama, and have a window if the model does; so do Mixtral's, and have experts."""
    if model.has_experts:
        return mixtral_from_gguf(model)
    plain = gguf_reading.plain_config("llama", model)
    return replace(plain, layer_visibility=gguf_reading.windowed_layers(model, plain, lambda _: True))


DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}

LLAMA = Family("llama", llama_program, HfForm("LlamaForCausalLM", DEFAULTS, from_hf), from_gguf)
