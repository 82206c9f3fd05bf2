"""The starcoder2 family: StarCoder 2. Layer norms, biases everywhere and an MLP without a gate.

Owns its order of operations and its readers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import Layer, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.model_config import ModelConfig
from plait.model.ops import Activation, NormKind, ValueId
from plait.model.program import Program


def starcoder2_program(config: ModelConfig) -> Program:
    return decoder(config, _layer)


def _layer(layer: Layer, x: ValueId) -> ValueId:
    x = layer.add(x, layer.attention(layer.norm(x, "attn_norm")))
    return layer.add(x, layer.mlp(layer.norm(x, "ffn_norm")))


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("starcoder2", facts, eps_key="norm_epsilon")
    bias = facts.flag("use_bias", True)
    seen = hf_reading.visibilities(plain, hf_reading.window_size(facts), lambda _: True)
    return replace(plain, norm_kind=NormKind.LAYER, qkv_bias=bias, out_bias=bias, mlp_bias=bias, layer_visibility=seen)


def from_gguf(model: GgufModel) -> ModelConfig:
    eps_key = "attention.layer_norm_epsilon"
    plain = gguf_reading.plain_config("starcoder2", model, eps_key=eps_key, activation=Activation.GELU_TANH)
    seen = gguf_reading.windowed_layers(model, plain, lambda _: True)
    return replace(plain, norm_kind=NormKind.LAYER, layer_visibility=seen)


DEFAULTS = {
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "use_bias": True,
    "sliding_window": None,
    "tie_word_embeddings": True,
}

STARCODER2 = Family("starcoder2", starcoder2_program, HfForm("Starcoder2ForCausalLM", DEFAULTS, from_hf), from_gguf)
