"""The ministral family: mistral in which the file says which layers have the window.

Owns its config.json. Its GGUF files are llama's.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import hf_reading
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.llama import llama_program
from plait.model.mistral import DEFAULTS
from plait.model.model_config import ModelConfig


def from_hf(facts: Facts) -> ModelConfig:
    plain = hf_reading.plain_config("ministral", facts)
    size = hf_reading.window_size(facts)
    return replace(plain, layer_visibility=hf_reading.windowed_layers(facts, plain, size, lambda _: True))


MINISTRAL = Family("ministral", llama_program, HfForm("MinistralForCausalLM", DEFAULTS, from_hf))
