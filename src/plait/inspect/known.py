"""Known models: the numbers of widely used models, so that a name is enough.

Owns the reading of known_models.json. Each entry says where its numbers were published; a model whose numbers could not
be found in a public file is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from plait.inspect.facts import Parameters


@dataclass(frozen=True, slots=True)
class KnownModel:
    name: str
    """As on the hub."""
    source: str
    config: Mapping[str, object]
    """The numbers of its config.json that say what is kept."""
    parameters: Parameters | None


def known_models() -> dict[str, KnownModel]:
    """By name in lower case. Models of equal configuration stand under several names."""
    text = resources.files("plait.inspect").joinpath("known_models.json").read_text(encoding="utf-8")
    found: dict[str, KnownModel] = {}
    for entry in json.loads(text)["models"]:
        numbers = entry.get("parameters")
        parameters = Parameters(*numbers) if numbers else None
        for name in (entry["name"], *entry.get("also", ())):
            found[name.lower()] = KnownModel(name, entry["source"], entry["config"], parameters)
    return found
