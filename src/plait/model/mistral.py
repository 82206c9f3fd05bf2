"""The mistral family: llama with a sliding window in every layer, or without, and heads of any width.

Owns its config.json. Its GGUF files are llama's.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import hf_reading
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.llama import llama_program
from plait.model.model_config import ModelConfig


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("mistral", facts)
    size = hf_reading.window_size(facts)
    return replace(plain, layer_visibility=hf_reading.visibilities(plain, size, lambda _: True))


DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
}

MISTRAL = Family("mistral", llama_program, HfForm("MistralForCausalLM", DEFAULTS, from_hf))
