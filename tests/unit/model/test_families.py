"""Families: the one place where an architecture's name meets its program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.model.programs import tiny, tiny_program

from plait.core.errors import ModelError
from plait.model.config import GGUF_ARCHITECTURES, HF_MODEL_TYPES
from plait.model.families import FAMILIES, build_program
from plait.model.llama import llama_program


def test_families_build_the_program_of_their_architecture() -> None:
    assert FAMILIES["llama"] is llama_program
    assert build_program(tiny()) == tiny_program()


def test_an_unknown_family_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ModelError, match="architecture 'mamba' is not supported; supported: llama"):
        build_program(replace(tiny(), family="mamba"))


def test_every_architecture_that_a_reader_accepts_has_a_program() -> None:
    assert set(GGUF_ARCHITECTURES) | set(HF_MODEL_TYPES) == set(FAMILIES)
