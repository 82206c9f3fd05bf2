"""The granite family: IBM's Granite 3. Llama with multipliers on embeddings, scores, residuals and logits.

Owns its readers.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import gguf_reading
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel
from plait.model.hf_reading import positive
from plait.model.llama import DEFAULTS as LLAMA_DEFAULTS
from plait.model.llama import from_hf as llama_from_hf
from plait.model.llama import llama_program
from plait.model.model_config import ModelConfig


def from_hf(facts: Facts) -> ModelConfig:
    return replace(
        llama_from_hf(facts),
        family="granite",
        embed_scale=positive(facts, "embedding_multiplier", 1.0),
        attention_scale=positive(facts, "attention_multiplier", 1.0),
        residual_scale=positive(facts, "residual_multiplier", 1.0),
        logit_scale=1.0 / positive(facts, "logits_scaling", 1.0),
    )


def from_gguf(model: GgufModel) -> ModelConfig:
    plain = gguf_reading.plain_config("granite", model)
    return replace(
        plain,
        embed_scale=model.scale("embedding_scale", 1.0),
        attention_scale=model.scale("attention.scale", plain.head_dim**-0.5),
        residual_scale=model.scale("residual_scale", 1.0),
        logit_scale=1.0 / model.scale("logit_scale", 1.0),
    )


GRANITE = Family("granite", llama_program, HfForm("GraniteForCausalLM", LLAMA_DEFAULTS, from_hf), from_gguf)
