"""Memory: the report's JSON has the form that the reference promises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.unit.inspect.asking import ask, layout

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
