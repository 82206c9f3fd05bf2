"""Names on a hub: what may be written, and which files a name means."""

from __future__ import annotations

import pytest

from plait.core.errors import ModelError
from plait.weights.hub_names import HubFiles, HubName, check_revision, model_files_of, parse_hub_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("hf:Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("org/x-GGUF:Q4_K_M", HubName("org/x-GGUF", quantisation="Q4_K_M")),
        ("org/x-GGUF/x-Q4_K_M.gguf", HubName("org/x-GGUF", file="x-Q4_K_M.gguf")),
        ("org/x/BF16/x-00001-of-00002.gguf", HubName("org/x", file="BF16/x-00001-of-00002.gguf")),
        ("org/x/model.safetensors", HubName("org/x", file="model.safetensors")),
    ],
)
def test_a_name_is_understood(text: str, expected: HubName) -> None:
    assert parse_hub_name(text) == expected
    assert expected.text == text.removeprefix("hf:")


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "/x/y", "org/", "../x", "org/..", "org/.x", "org/x/../y.gguf", "org/x//y.gguf", "org/x/y.bin"),
        *("org/x y", "org/x:", "org/x:../y", "org/x/y.gguf:Q4_0", "or--g/x", "org/x..y", "org/x\n", "hf:x", "~/x"),
        "org/" + "x" * 200,
    ],
)
def test_what_no_repository_can_be_called_is_no_name(text: str) -> None:
    assert parse_hub_name(text) is None


def test_a_revision_cannot_lead_elsewhere() -> None:
    for revision in ("main", "v1.0", "refs/pr/3", "0" * 40):
        assert check_revision(revision) == revision
    for revision in ("", "../x", "/x", "a/../b", "x y", "-x", "x" * 300):
        with pytest.raises(ModelError, match="give a branch, a tag or a commit"):
            check_revision(revision)


THERE = ["config.json", "tokenizer.json", "README.md", "pytorch_model.bin", "model.fp16.safetensors", "onnx/model.onnx"]


def files(name: HubName, *there: str) -> HubFiles:
    return model_files_of(name, [*THERE, *there], "place")


def test_only_what_a_model_is_read_from_is_named() -> None:
    name = HubName("org/x")
    texts = ("config.json", "tokenizer.json")
    assert files(name, "model.safetensors") == HubFiles("", texts, ("model.safetensors",))
    assert files(name, "model.safetensors.index.json") == HubFiles("", (*texts, "model.safetensors.index.json"), ())
    # As transformers takes them: the single file where there are both.
    assert files(name, "model.safetensors", "model.safetensors.index.json").weights == ("model.safetensors",)
    assert files(HubName("org/x", file="model.safetensors"), "model.safetensors") == HubFiles(
        "model.safetensors", texts, ("model.safetensors",)
    )


def test_beside_safetensors_a_gguf_file_must_be_asked_for() -> None:
    there = ("model.safetensors", "x-Q4_0.gguf")
    assert files(HubName("org/x"), *there).opened == ""
    assert files(HubName("org/x", quantisation="Q4_0"), *there) == HubFiles("x-Q4_0.gguf", (), ("x-Q4_0.gguf",))


def test_files_whose_names_lead_elsewhere_are_not_there() -> None:
    for strange in ("../model.safetensors", "x\ny.safetensors", ".x.safetensors", "a/../x-Q4_0.gguf", "/x-Q4_0.gguf"):
        with pytest.raises(ModelError, match=r"^place: "):
            model_files_of(HubName("org/x"), ["config.json", strange], "place")


def test_missing_files_are_named() -> None:
    with pytest.raises(
        ModelError, match=r"^place: no file a-00002-of-00002.gguf in it; there are a-00001-of-00002.gguf"
    ):
        model_files_of(HubName("org/x", file="a-00001-of-00002.gguf"), ["a-00001-of-00002.gguf"], "place")
    with pytest.raises(ModelError, match=r"^place: no config.json in it"):
        model_files_of(HubName("org/x"), ["model.safetensors"], "place")
