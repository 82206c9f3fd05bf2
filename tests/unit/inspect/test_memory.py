"""Memory: the report's JSON has the form that the reference promises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.unit.inspect.asking import JAMBA, ask, layout, write_config

from plait.cli.main import main
from plait.kv.layouts.cuts import Cause

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "inspect.md"


def keys_of(value: object) -> Iterator[str]:
    """Every key of the form, without those that are names of causes, parts and the like."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            if key not in ("waste_by_cause", "state_parts"):
                yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def test_every_key_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(
        capsys, "Qwen/Qwen3.6-35B-A3B", "--lengths", "2x500", "--draft-model", "Qwen/Qwen3-0.6B", "--compare", "vllm"
    )
    documented = set(re.findall(r"`\.?([a-z_]+)(?:\[\])?`", REFERENCE.read_text(encoding="utf-8")))
    assert set(keys_of(answer)) <= documented


def test_every_cause_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    documented = set(re.findall(r"`([a-z_]+)`", REFERENCE.read_text(encoding="utf-8")))
    assert {str(cause) for cause in Cause} <= documented


def test_ratios_are_those_of_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "google/gemma-3-27b-it", "--lengths", "8K,2x128K", "--compare", "vllm")
    base, other = layout(answer, "vllm"), layout(answer, "uniform")
    compared = next(one for one in answer["compare"]["layouts"] if one["name"] == "uniform")
    assert compared["largest_context_ratio"] == other["largest_context_tokens"] / base["largest_context_tokens"]
    assert compared["sequences_ratios"] == [
        mine["sequences"] / theirs["sequences"] for mine, theirs in zip(other["lengths"], base["lengths"], strict=True)
    ]
    assert compared["mix_ratio"] == other["mix"]["sequences"] / base["mix"]["sequences"]


def test_a_base_that_cannot_hold_the_model_compares_with_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "Qwen/Qwen3-8B", "--compare", "manual:state=1", "--kv-layout", "jenga")
    assert "no share for full" in layout(answer, "manual")["refused"]
    assert answer["compare"]["base"] == "manual:state=1"
    assert answer["compare"]["layouts"] == [
        {"name": "jenga", "largest_context_ratio": None, "sequences_ratios": [], "mix_ratio": None}
    ]


def test_what_has_no_end_is_null(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "rwkv", "num_hidden_layers": 2, "hidden_size": 64}', encoding="utf-8")
    answer = ask(capsys, path, "--lengths", "10", "--compare", "uniform")
    assert layout(answer, "jenga")["largest_context_tokens"] is None
    assert answer["compare"]["layouts"][0]["largest_context_ratio"] is None
    assert layout(answer, "plait")["largest_context_tokens"] is None


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("Qwen/Qwen3-8B", (), ()),
        ("google/gemma-3-27b-it", ("--kv-layout", "vllm,static,jenga", "--kv-cache-dtype", "int8"), ()),
        ("Qwen/Qwen3-8B", ("--kv-cache-dtype", "int8", "--block-size", "8"), ("blocks of 8 tokens: keys",)),
        ("google/gemma-3-27b-it", ("--kv-cache-dtype", "fp8"), ("keys and values in fp8",)),
        ("Qwen/Qwen3-8B", ("--block-size", "528"), ("blocks of 528 tokens: --block-size is 528; give a divisor",)),
        (
            "Qwen/Qwen3-8B",
            ("--draft-model", "Qwen/Qwen3-0.6B", "--tensor-parallel-size", "4"),
            ("4 ranks",),
        ),
        (
            "google/gemma-3-27b-it",
            ("--draft-model", "google/gemma-3-1b-it", "--kv-layout", "plait"),
            ("windows of a model for drafts",),
        ),
        # States as large as 1,568 tokens of a layer: more than a block of this engine can hold.
        ("Qwen/Qwen3.5-27B", (), ("this model: model_type is 'qwen3_5_text'", "--kv-layout vllm: a state is as large")),
        ("Qwen/Qwen3.5-27B", ("--kv-layout", "plait"), ("this model: ",)),
    ],
)
def test_what_serving_would_refuse_is_said_with_its_reason(
    capsys: pytest.CaptureFixture[str], model: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused = ask(capsys, model, "--lengths", "500", *arguments)["serving_refuses"]
    assert len(refused) == len(words)
    assert all(word in line for word, line in zip(words, refused, strict=True))


def test_a_refusal_stands_below_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", "memory", "ai21labs/AI21-Jamba-1.5-Mini", "--memory", "8GiB", "--lengths", "300"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "  plait serve refuses this model: model_type is 'jamba': this mixture of experts is not supported"


def test_a_file_that_is_served_has_no_refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_config(tmp_path, JAMBA)
    assert ask(capsys, path)["serving_refuses"] != []
    described = write_config(
        tmp_path, {"groups": [{"name": "a", "kind": "full", "layers": 2, "kv_heads": 1, "head_dim": 8}]}, "b.json"
    )
    assert ask(capsys, described)["serving_refuses"] == []
