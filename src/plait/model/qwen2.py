"""The qwen2 family: Qwen 2 and 2.5. Llama with biases on q, k and v.

Owns its readers. A window, where a model uses one, is in the last layers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.limits import MAX_LAYERS
from plait.model.llama import llama_program
from plait.model.model_config import ModelConfig
from plait.model.visibility import Visibility


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("qwen2", facts)
    return replace(plain, qkv_bias=True, layer_visibility=late_windows(facts, plain))


def late_windows(facts: Facts, plain: ModelConfig) -> tuple[Visibility, ...]:
    """Windows in the layers behind `max_window_layers`, if they are used at all."""
    size = hf_reading.window_size(facts) if facts.flag("use_sliding_window", False) else None
    first = facts.integer("max_window_layers", 0, MAX_LAYERS)
    return hf_reading.windowed_layers(facts, plain, size, lambda layer: layer >= first)


def from_gguf(model: GgufModel) -> ModelConfig:
    return gguf_reading.plain_config("qwen2", model)


DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

QWEN2 = Family("qwen2", llama_program, HfForm("Qwen2ForCausalLM", DEFAULTS, from_hf), from_gguf)
