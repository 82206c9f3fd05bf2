"""The qwen3 family: Qwen 3. Llama with a norm of each head of queries and keys.

Owns its order of operations and its readers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.blocks import Layer, QkNorm, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.model_config import ModelConfig
from plait.model.ops import ValueId
from plait.model.program import Program
from plait.model.qwen2 import DEFAULTS as QWEN2_DEFAULTS
from plait.model.qwen2 import late_windows


def qwen3_program(config: ModelConfig) -> Program:
    return decoder(config, _layer)


def _layer(layer: Layer, x: ValueId) -> ValueId:
    x = layer.add(x, layer.attention(layer.norm(x, "attn_norm"), QkNorm.HEADS))
    return layer.add(x, layer.gated_mlp(layer.norm(x, "ffn_norm")))


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("qwen3", facts)
    bias = facts.flag("attention_bias", False)
    return replace(plain, qkv_bias=bias, out_bias=bias, layer_visibility=late_windows(facts, plain))


def from_gguf(model: GgufModel) -> ModelConfig:
    return gguf_reading.plain_config("qwen3", model)


DEFAULTS = {**QWEN2_DEFAULTS, "head_dim": 128}

QWEN3 = Family("qwen3", qwen3_program, HfForm("Qwen3ForCausalLM", DEFAULTS, from_hf), from_gguf)
