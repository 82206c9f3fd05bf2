"""Families: which program belongs to which architecture name.

A new family is one file with one function and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

from plait.core.errors import ModelError
from plait.model.config import ModelConfig
from plait.model.llama import llama_program
from plait.model.program import Program

FAMILIES: dict[str, Callable[[ModelConfig], Program]] = {"llama": llama_program}
"""Architecture name, as in GGUF's general.architecture and HF's model_type -> program."""


def build_program(config: ModelConfig) -> Program:
    family = FAMILIES.get(config.family)
    if family is None:
        raise ModelError(f"architecture {config.family!r} is not supported; supported: {', '.join(FAMILIES)}")
    return family(config)
