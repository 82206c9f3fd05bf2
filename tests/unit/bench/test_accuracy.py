"""Accuracy: differences that can be worked out by hand, and a whole run on a model whose scheme rounds nothing."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from bench import accuracy
from bench.accuracy import Gap, Rows
from tests.e2e.tiny_model import write_tiny_model

from plait.exec.native import presence


def rows(logits: list[list[float]], logprobs: list[float]) -> Rows:
    return Rows(np.array(logits, np.float32), np.array(logprobs))


def test_errors_are_fractions_of_the_prompts_largest_logit_and_the_worst_prompt_counts() -> None:
    gap = Gap()
    gap.compare_logits([(rows([[8.0, 2.0]], []), rows([[8.0, 4.0]], [])), (rows([[1.0, -10.0]], []),) * 2])
    gap.compare_logits([(rows([[1.0, 0.0]], []), rows([[0.9, 1.0]], []))])
    assert gap.error == pytest.approx(1.0)
    assert gap.typical == pytest.approx(math.sqrt((0.01 + 1.0) / 2))
    assert (gap.num_rows, gap.num_equal) == (3, 2)


def test_perplexity_changes_by_the_mean_of_lost_log_probabilities() -> None:
    gap = Gap()
    gap.compare_logprobs(rows([], [-1.0, -2.0]), rows([], [-1.1, -2.1]))
    gap.compare_logprobs(rows([], [-3.0]), rows([], [-3.1]))
    near = gap.nearness("file", "Q8_0", "f16")
    assert near.perplexity == pytest.approx(math.exp(2.1))
    assert near.change == pytest.approx(math.exp(0.1) - 1)
    assert near.change_error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.skipif(presence.missing() is not None, reason="needs the native runtime, and that a C++ compiler")
def test_weights_and_a_cache_of_float32_lose_nothing_and_a_cache_of_halves_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.jsonl"
    prompts = ["a common beginning, then this", "a common beginning, and that", "a common beginning, then"]
    texts.write_text("".join(json.dumps({"body": {"prompt": prompt}}) + "\n" for prompt in prompts))
    model = write_tiny_model(tmp_path / "tiny.gguf")
    monkeypatch.setattr(sys, "argv", ["accuracy", str(model), "--texts", str(texts)])
    assert accuracy.main() == 0
    halves, floats = json.loads(capsys.readouterr().out.splitlines()[-1])["schemes"]
    assert (floats["weights"], floats["cache"], halves["cache"]) == ("F32", "f32", "f16")
    assert (floats["error"], floats["change"], floats["num_equal"]) == (0.0, 0.0, floats["num_rows"])
    assert 0 < halves["typical"] < halves["error"] < 0.01
    # Of 29, 28 and 24 bytes: the first has 28 that follow another, the second 8 behind what both begin with.
    assert floats["num_tokens"] == 28 + 8


def test_texts_that_are_none_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"custom_id": "no body"}\n')
    model = write_tiny_model(tmp_path / "tiny.gguf")
    monkeypatch.setattr(sys, "argv", ["accuracy", str(model), "--texts", str(texts)])
    assert accuracy.main() == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
