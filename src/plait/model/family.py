"""Family: what a family of models consists of.

Owns the shape of an entry in `plait.model.families`: how the family's files are read, and its program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plait.model.facts import Facts
from plait.model.gguf_reading import GgufModel
from plait.model.model_config import ModelConfig
from plait.model.program import Program


@dataclass(frozen=True, slots=True)
class HfForm:
    """How `transformers` writes a family. `class_name`: the class whose weights we read."""

    class_name: str
    defaults: Mapping[str, object]
    """What `transformers` takes for a key that config.json does not have."""
    read: Callable[[Facts], ModelConfig]


@dataclass(frozen=True, slots=True)
class Family:
    """`name` is what `ModelConfig.family` says, `model_type` in config.json, and the architecture in GGUF files."""

    name: str
    program: Callable[[ModelConfig], Program]
    hf: HfForm
    gguf: Callable[[GgufModel], ModelConfig] | None = None
    """None: its files say another family's name, or there are none."""
    gguf_name: str | None = None
    """The architecture in GGUF files, where it is not `name`."""
