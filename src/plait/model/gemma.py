"""The gemma family: the first Gemma. Llama with scaled embeddings, norm weights around zero and a GELU gate.

Owns its readers, and what later Gemmas share with it. GGUF files keep norm weights with the one already added.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.llama import llama_program
from plait.model.model_config import ModelConfig
from plait.model.ops import Activation


def from_hf(facts: Facts) -> ModelConfig:
    config = gemma_config("gemma", facts, "hidden_act")
    # The first files say gelu and mean its tanh form.
    is_legacy = config.activation is Activation.GELU
    return replace(config, activation=Activation.GELU_TANH if is_legacy else config.activation)


def gemma_config(family: str, facts: Facts, activation_key: str) -> ModelConfig:
    """What all Gemmas have."""
    facts.refuse("use_bidirectional_attention", (False,), "models that look ahead are not supported")
    plain = hf_reading.plain_config(family, facts, activation_key=activation_key)
    bias = facts.flag("attention_bias", False)
    return replace(plain, qkv_bias=bias, out_bias=bias, norm_offset=1.0, embed_scale=plain.hidden**0.5)


def from_gguf(model: GgufModel) -> ModelConfig:
    return gemma_gguf_config("gemma", model)


def gemma_gguf_config(family: str, model: GgufModel) -> ModelConfig:
    plain = gguf_reading.plain_config(family, model, activation=Activation.GELU_TANH)
    return replace(plain, embed_scale=plain.hidden**0.5)


DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}

GEMMA = Family("gemma", llama_program, HfForm("GemmaForCausalLM", DEFAULTS, from_hf), from_gguf)
