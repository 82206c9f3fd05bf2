"""By hand: facts from a file that lists a model's groups, for architectures that no reader knows.

Owns that small format: `groups`, each with a name, a kind, a number of layers and what one layer keeps.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.inspect.facts import ModelFacts
from plait.inspect.layers import KeysValues, Layer, NumberType, Part, State
from plait.inspect.readers.attention import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH
from plait.model.facts import Facts
from plait.model.parts import GroupKind

_MAX_BYTES = 1 << 40
_MAX_GROUPS = 64


def facts_from_description(description: Mapping[str, object], name: str, source: str) -> ModelFacts:
    facts = Facts(source, description)
    entries = description.get("groups")
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MAX_GROUPS:
        raise facts.error(f"groups must be a list of 1 to {_MAX_GROUPS} tables")
    layers: list[Layer] = []
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise facts.error(f"groups, number {place + 1}, must be a table of keys and values")
        layers += _group(Facts(f"{source}, groups, number {place + 1}", entry))
    return ModelFacts(
        name=name,
        family=str(description.get("family", "described by hand")),
        source=source,
        num_layers=facts.integer("layers", 1, MAX_LAYERS, min(len(layers), MAX_LAYERS)),
        hidden=facts.integer("hidden_size", 0, MAX_WIDTH, 0),
        layers=tuple(layers),
        max_tokens=facts.integer("max_tokens", 1, MAX_TOKENS) if facts.has("max_tokens") else None,
    )


def _group(facts: Facts) -> list[Layer]:
    kind = GroupKind(facts.word("kind", [str(kind) for kind in GroupKind], "kind of group"))
    count = facts.integer("layers", 1, MAX_LAYERS)
    label = facts.values.get("name", str(kind))
    if not isinstance(label, str) or not label:
        raise facts.error("name must be a word")
    if kind is GroupKind.STATE:
        return [_state(facts, label)] * count
    sized = kind in (GroupKind.WINDOW, GroupKind.CHUNKED)
    window = facts.integer("window", 1, MAX_TOKENS) if sized else 0
    if facts.has("bytes_per_token"):
        row = facts.integer("bytes_per_token", 1, _MAX_BYTES)
        return [KeysValues(kind, 1, 0, 0, window, label, splits=False, row_bytes=row)] * count
    heads, dim = facts.integer("kv_heads", 1, MAX_WIDTH), facts.integer("head_dim", 1, MAX_WIDTH)
    return [KeysValues(kind, heads, dim, facts.integer("value_dim", 0, MAX_WIDTH, dim), window, label)] * count


def _state(facts: Facts, label: str) -> State:
    parts = facts.table("bytes_per_state")
    if parts is None:
        raise facts.error(
            'bytes_per_state is missing; give the parts of one layer, e.g. {"conv": 49152, "ssm": 262144}'
        )
    named = [(name, parts.integer(name, 1, _MAX_BYTES)) for name in parts.values]
    # One byte an element: the file says bytes, and nobody asks for another type.
    return State(label, tuple(Part(name, size, NumberType.FP8) for name, size in named))
