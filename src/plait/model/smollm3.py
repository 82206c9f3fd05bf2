"""The smollm3 family: SmolLM 3. Llama in which every fourth layer rotates nothing.

Owns its readers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.limits import MAX_LAYERS
from plait.model.llama import from_hf as llama_from_hf
from plait.model.llama import llama_program
from plait.model.model_config import ModelConfig

EVERY = 4
"""The last of so many layers rotates nothing, where a file does not say."""


def from_hf(facts: Facts) -> ModelConfig:
    plain = replace(llama_from_hf(facts), family="smollm3")
    unrotated = _unrotated(facts, plain.num_layers)
    size = hf_reading.window_size(facts) if facts.flag("use_sliding_window", False) else None
    seen = hf_reading.windowed_layers(facts, plain, size, lambda layer: layer in unrotated)
    return replace(plain, unrotated_layers=unrotated, layer_visibility=seen)


def _unrotated(facts: Facts, num_layers: int) -> tuple[int, ...]:
    rotates = facts.values.get("no_rope_layers")
    if rotates is None:
        every = facts.integer("no_rope_layer_interval", 1, MAX_LAYERS, EVERY)
        return tuple(layer for layer in range(num_layers) if (layer + 1) % every == 0)
    if not isinstance(rotates, list) or len(rotates) < num_layers or any(flag not in (0, 1) for flag in rotates):
        raise facts.error(f"no_rope_layers does not say 0 or 1 for each of {num_layers} layers")
    return tuple(layer for layer in range(num_layers) if not rotates[layer])


def from_gguf(model: GgufModel) -> ModelConfig:
    plain = gguf_reading.plain_config("smollm3", model)
    return replace(plain, unrotated_layers=tuple(range(EVERY - 1, plain.num_layers, EVERY)))


DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 2_000_000.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "tie_word_embeddings": True,
}

SMOLLM3 = Family("smollm3", llama_program, HfForm("SmolLM3ForCausalLM", DEFAULTS, from_hf), from_gguf)
