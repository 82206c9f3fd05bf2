"""The phi3 family: Phi 3, 3.5 and 4. Llama whose files keep q, k and v in one matrix, and gate and up in another.

Owns its readers; the matrices are cut where weights are named. Long models have two sets of rotary divisors, of which
`ModelConfig.within` chooses one.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading, hf_reading
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.llama import llama_program
from plait.model.model_config import ModelConfig


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("phi3", _renamed(facts), rotates_parts=True)
    size = hf_reading.window_size(facts)
    return replace(plain, layer_visibility=hf_reading.visibilities(plain, size, lambda _: True))


def _renamed(facts: Facts) -> Facts:
    """Early files call their scaling "su" or "yarn"; it always was longrope."""
    values = dict(facts.values)
    for key in ("rope_scaling", "rope_parameters"):
        table = facts.table(key)
        if table is None:
            continue
        names = {name: "longrope" for name in ("type", "rope_type") if table.values.get(name) in ("su", "yarn")}
        values[key] = {**table.values, **names}
    return Facts(facts.source, values)


def from_gguf(model: GgufModel) -> ModelConfig:
    plain = gguf_reading.plain_config("phi3", model)
    return replace(plain, layer_visibility=gguf_reading.windowed_layers(model, plain, lambda _: True))


DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": None,
}

PHI3 = Family("phi3", llama_program, HfForm("Phi3ForCausalLM", DEFAULTS, from_hf), from_gguf)
