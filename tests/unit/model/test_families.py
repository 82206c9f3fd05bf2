"""Families: the one place where an architecture's name meets its readers and its program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.conformance.families import CASES, family_model
from tests.unit.model.programs import tiny, tiny_program

from plait.core.errors import ModelError
from plait.model.config import GGUF_ARCHITECTURES, HF_MODEL_TYPES
from plait.model.families import FAMILIES, build_program
from plait.model.llama import llama_program
from plait.weights.hf_names import HF_NAMES
from plait.weights.names import GGUF_NAMES, INTERLEAVED


def test_families_build_the_program_of_their_architecture() -> None:
    assert FAMILIES["llama"].program is llama_program
    assert build_program(tiny()) == tiny_program()


def test_an_unknown_family_is_named_with_those_that_are_known() -> None:
    with pytest.raises(
        ModelError, match="architecture 'mamba' is not supported; supported: llama, mistral, ministral, qwen2"
    ):
        build_program(replace(tiny(), family="mamba"))


def test_every_family_has_names_for_its_weights() -> None:
    assert set(HF_NAMES) == set(FAMILIES)
    assert set(GGUF_NAMES) == set(GGUF_ARCHITECTURES)
    assert set(GGUF_NAMES) >= INTERLEAVED


def test_every_family_is_checked_against_its_original() -> None:
    assert {case.model_type for case in CASES} == set(HF_MODEL_TYPES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_config_says_which_family_reads_its_weights(case: object) -> None:
    model = family_model(next(one for one in CASES if one is case))
    assert FAMILIES[model.config.family].name == model.config.family
    assert build_program(model.config).name == model.config.family
