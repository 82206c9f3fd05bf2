"""Config: facts from a Hugging Face config.json, whether or not Plait can run the model.

Owns the way from a parsed file to `ModelFacts`: the part that describes the text model, its defaults, its reader.
An architecture without a reader is refused by name, with the way to describe it by hand.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from plait.core.errors import ModelError
from plait.inspect.facts import ModelFacts
from plait.inspect.layers import KeysValues, Layer, NumberType
from plait.inspect.readers.attention import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, head_dim
from plait.inspect.readers.defaults import DEFAULTS
from plait.inspect.readers.table import READERS
from plait.model.facts import Facts
from plait.model.parts import GroupKind

_INNER = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where models with an encoder keep the part that describes the text model."""
_TYPES = {
    "float32": NumberType.F32,
    "bfloat16": NumberType.BF16,
    "float16": NumberType.F16,
    "torch.float32": NumberType.F32,
    "torch.bfloat16": NumberType.BF16,
    "torch.float16": NumberType.F16,
}
BY_HAND = "describe its groups in a file instead: docs/reference/inspect.md, 'A description by hand'"


def facts_from_config(config: Mapping[str, object], name: str, source: str) -> ModelFacts:
    """What a config.json says about memory; `ModelError` where that is not enough."""
    values, shown = text_part(config, source)
    family = values.get("model_type")
    if not isinstance(family, str):
        raise ModelError(f"{shown}: model_type is missing; give a Hugging Face config.json, or {BY_HAND}")
    reader = READERS.get(family)
    if reader is None:
        close = difflib.get_close_matches(family, READERS, n=1)
        guess = f" (the nearest known type is {close[0]})" if close else ""
        raise ModelError(f"{shown}: what a model of type {family!r} keeps in memory is not known{guess}; {BY_HAND}")
    facts = Facts(shown, {**DEFAULTS.get(family, {}), **values})
    layers = tuple(reader(facts))
    return ModelFacts(
        name=name,
        family=family,
        source=source,
        num_layers=facts.integer("num_hidden_layers", 1, MAX_LAYERS),
        hidden=facts.integer("hidden_size", 1, MAX_WIDTH),
        layers=layers,
        max_tokens=_max_tokens(facts),
        attention_width=_attention_width(facts, layers),
        vocab_size=facts.integer("vocab_size", 1, 1 << 24) if facts.has("vocab_size") else 0,
        numbers=_numbers(values, config),
    )


def text_part(config: Mapping[str, object], source: str) -> tuple[dict[str, object], str]:
    """The table that describes the text model, and its name for messages."""
    for key in _INNER:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            found = {str(name): value for name, value in inner.items()}
            return text_part({"model_type": config.get("model_type")} | found, f"{source}, {key}")
    return dict(config), source


def _max_tokens(facts: Facts) -> int | None:
    for key in ("max_position_embeddings", "max_sequence_length", "context_length"):
        if facts.has(key):
            return facts.integer(key, 1, MAX_TOKENS)
    return None


def _attention_width(facts: Facts, layers: tuple[Layer, ...]) -> int:
    """Columns of the queries; for a latent vector those that it is compared with."""
    if not any(isinstance(layer, KeysValues) for layer in layers) or not facts.has("num_attention_heads"):
        return 0
    heads = facts.integer("num_attention_heads", 1, MAX_WIDTH)
    latent = [one for one in layers if isinstance(one, KeysValues) and one.kind is GroupKind.FULL and not one.splits]
    return heads * (latent[0].head_dim_k if latent else head_dim(facts))


def _numbers(values: Mapping[str, object], config: Mapping[str, object]) -> NumberType:
    for table in (values, config):
        for key in ("dtype", "torch_dtype"):
            found = table.get(key)
            if isinstance(found, str) and found in _TYPES:
                return _TYPES[found]
    return NumberType.BF16
