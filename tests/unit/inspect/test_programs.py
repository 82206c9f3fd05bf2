"""Programs: models from configurations alone, with exactly the published number of parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.core.errors import ModelError
from plait.inspect.known import KnownModel, known_models
from plait.inspect.programs import find_model
from plait.inspect.served import served_from_hf
from plait.inspect.sources import find_facts
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.model.program import Program

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


def built() -> Iterator[tuple[KnownModel, Program]]:
    for name, model in known_models().items():
        try:
            if name == model.name.lower():
                yield model, build_program(config_from_hf(dict(model.config)))
        except ModelError:
            continue


def test_every_known_model_that_can_be_built_has_its_published_number_of_parameters() -> None:
    found = {
        model.name: (program.num_parameters, model.parameters and model.parameters.total) for model, program in built()
    }
    assert len(found) > 25
    assert {name: numbers for name, numbers in found.items() if numbers[0] != numbers[1]} == {}


def test_of_a_mixtures_experts_those_count_that_a_token_goes_through() -> None:
    for name in ("openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1"):
        model = known_models()[name.lower()]
        facts = find_facts(name)
        assert served_from_hf(facts, model.config).parameters == model.parameters, name


def test_a_known_name_is_priced_in_sixteen_bits() -> None:
    model = find_model("codellama/codellama-34b-hf")
    assert (model.facts.name, model.max_tokens, model.bytes_per_weight) == ("codellama/CodeLlama-34b-hf", 16384, 2.0)
    assert model.weight_bytes == pytest.approx(67.5e9, rel=0.001)


def test_a_configuration_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    by_folder, by_file = find_model(str(tmp_path)), find_model(str(tmp_path / "config.json"))
    assert (
        by_folder.program.num_parameters
        == by_file.program.num_parameters
        == 2 * 64_000 + 2 * (3 * 4096 + 3 * 8192 + 128) + 64
    )
    assert by_folder.max_tokens == 512


def test_stored_weights_say_how_many_bytes_they_have(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100_000)
    model = find_model(str(tmp_path))
    assert model.weight_bytes == pytest.approx(100_000)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zai-org/GLM-4.5", r"zai-org/GLM-4.5 cannot be simulated: .*this mixture of experts"),
        ("Zyphra/Zamba2-2.7B", "Zyphra/Zamba2-2.7B cannot be simulated: .*'zamba2'"),
        ("meta-llama/Llama-9", "no file and no known model is called"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        find_model(name)
