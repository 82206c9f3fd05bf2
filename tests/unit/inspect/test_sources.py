"""Sources: files, folders, known names and mistakes; and that every known model is read as it is run."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.inspect.asking import JAMBA, write_config

from plait.core.errors import ModelError
from plait.inspect.byhand import facts_from_description
from plait.inspect.known import known_models
from plait.inspect.layers import KeysValues, NumberType, memory_groups
from plait.inspect.sources import find_facts
from plait.model.parts import GroupKind

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def test_a_folder_is_read_by_its_configuration_and_named_after_itself(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    write_config(folder, LLAMA)
    facts = find_facts(str(folder))
    assert (facts.name, facts.num_layers, facts.weight_bytes) == ("my-llama", 2, None)
    assert facts == find_facts(str(folder / "config.json"))


def test_weights_beside_a_configuration_are_counted_not_read(tmp_path: Path) -> None:
    write_config(tmp_path, LLAMA)
    (tmp_path / "model.safetensors").write_bytes(b"no such format" * 10)
    assert find_facts(str(tmp_path)).weight_bytes == 140
    write_config(tmp_path, {"metadata": {"total_size": 12345}, "weight_map": {}}, "model.safetensors.index.json")
    assert find_facts(str(tmp_path)).weight_bytes == 12345


def test_a_family_that_plait_serves_brings_its_number_of_parameters(tmp_path: Path) -> None:
    facts = find_facts(str(write_config(tmp_path, LLAMA)))
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    assert facts.refusal == ""
    assert facts.parameters is not None
    assert facts.parameters.total == 2 * 100 * 64 + 2 * layer + 64
    assert facts.parameters.active == facts.parameters.total - 100 * 64


def test_one_that_it_does_not_serve_says_why(tmp_path: Path) -> None:
    facts = find_facts(str(write_config(tmp_path, JAMBA)))
    assert facts.parameters is None
    assert facts.refusal is not None
    assert "jamba" in facts.refusal


def test_a_gguf_file_is_known_by_its_beginning(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    assert find_facts(str(tmp_path)).layers == find_facts(str(path)).layers
    renamed = tmp_path / "blob"
    path.rename(renamed)
    assert find_facts(str(renamed)).family == "llama"


def test_names_do_not_depend_on_capitals() -> None:
    assert find_facts("qwen/qwen3-8b").name == find_facts("Qwen/Qwen3-8B").name == "Qwen/Qwen3-8B"
    assert find_facts("meta-llama/Llama-3.1-8B-Instruct").layers == find_facts("meta-llama/Llama-3.1-8B").layers


@pytest.mark.parametrize("name", sorted({model.name for model in known_models().values()}))
def test_every_known_model_can_be_read_and_says_where_its_numbers_are_from(name: str) -> None:
    facts = find_facts(name)
    groups = memory_groups(facts.layers, NumberType.BF16, facts.numbers)
    assert groups
    assert facts.max_tokens is not None
    assert len(facts.source) > len(name) // 2
    assert sum(group.num_layers for group in groups) <= 2 * facts.num_layers
    if facts.parameters is not None:
        assert facts.parameters.active <= facts.parameters.total


@pytest.mark.parametrize(
    ("name", "bytes_per_token", "state_bytes"),
    [
        ("meta-llama/Llama-3.1-8B", 131072, 0),
        ("meta-llama/Llama-3.1-70B", 327680, 0),
        ("deepseek-ai/DeepSeek-V3", 70272, 0),
        ("Qwen/Qwen3.6-27B", 16 * 4096, 48 * (48 * 128 * 128 * 4 + 10240 * 3 * 2)),
        ("nvidia/Nemotron-H-8B-Base-8K", 16384, 24 * 2 * (128 * 64 * 128 + (8192 + 2 * 8 * 128) * 3)),
        ("LiquidAI/LFM2-2.6B", 8 * 2048, 22 * 2048 * 2 * 2),
        ("XiaomiMiMo/MiMo-V2-Flash", 9 * 4 * 320 * 2 + 39 * 8 * 320 * 2, 0),
    ],
)
def test_published_sizes_of_known_models(name: str, bytes_per_token: int, state_bytes: int) -> None:
    facts = find_facts(name)
    groups = memory_groups(facts.layers, NumberType.BF16, facts.numbers)
    assert sum(group.bytes_per_token for group in groups) == bytes_per_token
    assert sum(group.num_layers * group.state_bytes for group in groups) == state_bytes


def test_mistakes_are_one_line_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "two" / name).write_bytes(b"GGUF")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "broken.json").write_text('{"a": ')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    expected = {
        "Qwen/Qwen3-8": "did you mean Qwen/Qwen3-8B?",
        "Qwen/Nothing-1T-Like-This": "known names that plait inspect lists",
        "missing.gguf": "no such file",
        "./missing": "no such file",
        "nul\0byte": "is no path and no name",
        "x" * 5000: "cannot be read (File name too long)",
        str(tmp_path / "empty"): "holds neither config.json nor a .gguf file",
        str(tmp_path / "two"): "holds 2 GGUF files; give one of them",
        str(tmp_path / "list.json"): "holds no table",
        str(tmp_path / "broken.json"): "is not JSON",
        str(tmp_path / "deep.json"): "is not JSON",
    }
    for name, words in expected.items():
        with pytest.raises(ModelError) as caught:
            find_facts(name)
        message = str(caught.value)
        assert words in message
        assert "\n" not in message


def test_a_file_that_is_far_too_large_for_a_configuration_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="too many for a configuration"):
        find_facts(str(path))


def test_a_description_by_hand_says_what_no_reader_knows(tmp_path: Path) -> None:
    description = {
        "family": "mine",
        "max_tokens": 1000,
        "groups": [
            {"name": "global", "kind": "full", "layers": 2, "kv_heads": 2, "head_dim": 16, "value_dim": 8},
            {"name": "local", "kind": "window", "layers": 6, "window": 100, "bytes_per_token": 64},
            {"name": "memory", "kind": "state", "layers": 4, "bytes_per_state": {"conv": 100, "scan": 300}},
        ],
    }
    facts = find_facts(str(write_config(tmp_path, description, "mine.json")))
    groups = memory_groups(facts.layers, NumberType.F16, facts.numbers)
    assert [(one.name, one.num_layers, one.token_bytes, one.state_bytes) for one in groups] == [
        ("global", 2, 2 * 24 * 2, 0),
        ("local", 6, 64, 0),
        ("memory", 4, 0, 400),
    ]
    assert (facts.name, facts.family, facts.max_tokens) == ("mine", "mine", 1000)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([], "groups must be a list of 1 to 64 tables"),
        ("full", "groups must be a list"),
        ([3], "groups, number 1, must be a table"),
        ([{"kind": "fuller", "layers": 1}], "kind is 'fuller'; this kind of group is not supported; supported: full"),
        ([{"kind": "full"}], "layers is missing"),
        ([{"kind": "full", "layers": 1}], "kv_heads is missing"),
        ([{"kind": "window", "layers": 1, "bytes_per_token": 4}], "window is missing"),
        ([{"kind": "state", "layers": 1}], 'bytes_per_state is missing; give the parts of one layer, e.g. {"conv"'),
        ([{"kind": "state", "layers": 1, "bytes_per_state": {"a": -1}}], "a is -1; it must be a whole number"),
        ([{"name": 3, "kind": "full", "layers": 1}], "name must be a word"),
    ],
)
def test_a_description_that_lacks_something_says_what(groups: object, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        facts_from_description({"groups": groups}, "mine", "mine.json")
    assert words in str(caught.value)


def test_rows_of_bytes_do_not_depend_on_the_type_of_the_cache() -> None:
    row = KeysValues(GroupKind.FULL, 1, 0, 0, splits=False, row_bytes=132)
    assert row.bytes_of(NumberType.F32, 8) == row.bytes_of(NumberType.FP8, 1) == 132


def test_the_package_data_is_json_with_one_model_on_each_line() -> None:
    text = resources.files("plait.inspect").joinpath("known_models.json").read_text(encoding="utf-8")
    lines = text.splitlines()[1:-1]
    assert len(lines) == len(json.loads(text)["models"]) >= 30
    assert all(json.loads(line.rstrip(",")) for line in lines)
