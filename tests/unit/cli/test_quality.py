"""`plait bench quality`: statistics that can be worked out by hand, the gate, and the whole command on a tiny model."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.e2e.tiny_model import CONTEXT, write_tiny_model
from tests.unit.api.byte_text import BEGIN

from plait.build import load_model
from plait.cli.main import main
from plait.cli.quality import Quality, beginning, measure_quality, paired_change, read_text
from plait.config.engine_options import EngineOptions
from plait.core.errors import UsageError
from plait.exec.likeness import Likeness
from plait.exec.native import presence
from plait.text.gguf import tokenizer_from_gguf
from plait.weights.gguf import read_gguf

Capture = pytest.CaptureFixture[str]

needs_native = pytest.mark.skipif(
    presence.missing() is not None, reason="needs the native runtime, and that a C++ compiler"
)

ONE = Quality(
    file="m.gguf",
    weights="q8_0",
    rows="int8",
    cache="f16",
    num_tokens=1000,
    perplexity=20.0,
    true_perplexity=19.9,
    change=0.004,
    change_error=0.0004,
    agreement=0.98,
    mean_distance=0.03,
    largest_distance=0.5,
    divergence=0.001,
    logit_error=0.01,
    largest_logit_error=0.1,
    fingerprint="native",
)


def window(num_tokens: int, true: float, given: float) -> Likeness:
    return Likeness(num_tokens=num_tokens, true_loss=true, given_loss=given)


# Statistics


def test_perplexity_changes_by_the_mean_of_lost_log_probabilities() -> None:
    change, error = paired_change([window(10, 20.0, 21.0), window(10, 30.0, 31.0)])
    assert change == pytest.approx(math.exp(0.1) - 1)
    assert error == pytest.approx(0.0, abs=1e-12)


def test_the_error_is_that_of_a_mean_over_equal_windows() -> None:
    lost = [0.1, 0.3, 0.2, 0.4]
    change, error = paired_change([window(100, 50.0, 50.0 + 100 * each) for each in lost])
    mean = 0.25
    deviation = math.sqrt(sum((each - mean) ** 2 for each in lost) / 3)
    assert change == pytest.approx(math.exp(mean) - 1)
    assert error == pytest.approx(math.exp(mean) * deviation / 2)


def test_a_window_counts_by_its_tokens() -> None:
    change, error = paired_change([window(300, 0.0, 30.0), window(100, 0.0, 50.0)])
    assert change == pytest.approx(math.exp(0.2) - 1)
    # Against 0.2 a token the first lost 30 too little and the second 30 too much.
    assert error == pytest.approx(math.exp(0.2) * math.sqrt(2 / 1 * (30**2 + 30**2)) / 400)


def test_what_all_windows_have_in_common_is_no_error_however_much_they_differ() -> None:
    hard_and_easy = [window(10, loss, loss + 1) for loss in (5.0, 500.0, 50.0)]
    assert paired_change(hard_and_easy)[1] == pytest.approx(0.0, abs=1e-12)


def test_one_window_has_no_error() -> None:
    change, error = paired_change([window(10, 20.0, 21.0)])
    assert (change, error) == (pytest.approx(math.exp(0.1) - 1), None)


# The gate


def test_the_verdict_is_one_sentence_with_both_numbers() -> None:
    assert ONE.sentence(0.005) == (
        "perplexity changes by +0.400% ± 0.040% against the same weights in float32; at most +0.50% is allowed: "
        "within the limit"
    )
    outside = replace(ONE, change=0.0071)
    assert not outside.is_within(0.005)
    assert outside.sentence(0.005).endswith("at most +0.50% is allowed: OUTSIDE the limit")


def test_a_better_perplexity_is_within_every_limit() -> None:
    assert replace(ONE, change=-0.02).is_within(0.0)


@pytest.mark.parametrize(("change", "error"), [(0.0045, 0.0004), (0.0055, 0.0004), (0.001, None)])
def test_what_chance_could_have_decided_is_called_so(change: float, error: float | None) -> None:
    assert replace(ONE, change=change, change_error=error).sentence(0.005).endswith("score more text")


# The text


def test_the_built_in_text_is_small_and_of_several_kinds() -> None:
    text = read_text(None)
    assert len(text.encode()) <= 120_000
    for sign in ("Catherine Morland", "class KVCache:", "#include", "Menschenrechte", "人人有权"):
        assert sign in text


@pytest.mark.model
def test_the_built_in_text_has_as_many_tokens_as_are_scored_by_default(model_path: Path) -> None:
    model = load_model(EngineOptions(model=str(model_path)), lambda done, total: None, datetime.now)
    assert len(model.tokenizer.encode(read_text(None), add_special=False)) > 20_000


def test_a_text_that_does_not_end_is_not_read_to_its_end() -> None:
    with pytest.raises(UsageError, match=r"--text /dev/zero is larger than \d+ bytes; give a part of it"):
        read_text(Path("/dev/zero"))


def test_a_profile_that_there_would_not_be_is_refused(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("plait._native")
    assert main(["bench", "quality", "--profile", str(tmp_path / "trace.json")]) == 2
    assert "runs no engine to profile; leave it out" in capsys.readouterr().err


def test_a_text_that_is_none_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("plait._native")
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))

    def said(text: bytes | None) -> str:
        path = tmp_path / "text"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_bytes(text)
        assert main(["bench", "quality", "--model", model, "--text", str(path)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert "cannot be read: No such file or directory; give an existing file" in said(None)
    assert "is not UTF-8" in said(b"\xff\xfe")
    assert "has 1 tokens of this model; give a text of two or more" in said(b"x")


# The command


def test_without_the_native_module_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "plait._native", None)
    monkeypatch.delattr("plait._native", raising=False)
    assert main(["bench", "quality"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("plait: plait bench quality compares the native runtime's numbers, and it is not here")
    assert said.count("\n") == 1


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(write_tiny_model(tmp_path / "tiny.gguf"))


def run(capsys: Capture, *arguments: str) -> tuple[int, dict[str, object]]:
    code = main(["bench", "quality", "--json", "--quiet", "--tokens", "600", *arguments])
    return code, json.loads(capsys.readouterr().out)


def number(found: dict[str, object], name: str) -> float:
    value = found[name]
    assert isinstance(value, float)
    return value


@needs_native
def test_weights_and_a_cache_of_float32_lose_exactly_nothing(tiny: str, capsys: Capture) -> None:
    code, found = run(capsys, "--model", tiny, "--kv-cache-dtype", "f32", "--limit-percent", "0")
    assert (code, found["within"], found["num_tokens"], found["window_tokens"]) == (0, True, 599, CONTEXT)
    assert (found["weights"], found["rows"], found["cache"]) == ("f32", "f32", "f32")
    assert (found["change"], found["change_error"], found["agreement"], found["divergence"]) == (0.0, 0.0, 1.0, 0.0)
    assert found["perplexity"] == found["true_perplexity"]


@needs_native
def test_a_cache_of_halves_loses_little(tiny: str, capsys: Capture) -> None:
    code, found = run(capsys, "--model", tiny)
    assert (code, found["within"], found["limit"], found["cache"]) == (0, True, 0.005, "f16")
    assert 0 < number(found, "change") < 0.001
    assert 0 < number(found, "divergence") < 0.0001
    assert 0 < number(found, "logit_error") < number(found, "largest_logit_error") < 0.01
    assert 0 < number(found, "mean_distance") < number(found, "largest_distance") < 0.1
    assert number(found, "perplexity") > number(found, "true_perplexity")


@needs_native
def test_outside_of_the_limit_the_exit_code_is_one_and_the_table_ends_with_a_clear_sentence(
    tiny: str, capsys: Capture
) -> None:
    assert main(["bench", "quality", "--tokens", "600", "--model", tiny, "--limit-percent", "0"]) == 1
    out, err = capsys.readouterr()
    titles, row, sentence = out.splitlines()
    assert titles.split()[:5] == ["file", "weights", "rows", "cache", "perplexity"]
    assert row.split()[:4] == ["tiny.gguf", "f32", "f32", "f16"]
    assert sentence.endswith("at most +0.00% is allowed: OUTSIDE the limit")
    assert "scoring: 100%" in err
    assert run(capsys, "--model", tiny, "--limit-percent", "0")[0] == 1


@needs_native
def test_a_quick_look_gives_no_verdict(tiny: str, capsys: Capture) -> None:
    assert main(["bench", "quality", "--quick", "--quiet", "--model", tiny, "--limit-percent", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("a quick look is too little text for a verdict")
    code, found = run(capsys, "--quick", "--model", tiny, "--limit-percent", "0")
    assert (code, found["limit"], found["within"]) == (0, None, None)
    assert number(found, "change") > 0


@needs_native
def test_the_reference_executor_can_be_measured_too_and_is_as_exact(tiny: str, capsys: Capture) -> None:
    code, found = run(capsys, "--model", tiny, "--executor", "reference")
    assert (code, found["agreement"]) == (0, 1.0)
    assert abs(number(found, "change")) < 1e-5


@needs_native
@pytest.mark.parametrize("executor", ["native", "reference"])
def test_what_rounding_at_load_costs_is_in_the_figures(tiny: str, executor: str, capsys: Capture) -> None:
    plain = run(capsys, "--model", tiny, "--executor", executor)[1]
    _, rounded = run(capsys, "--model", tiny, "--executor", executor, "--quantize", "int4")
    assert rounded["true_perplexity"] == plain["true_perplexity"]
    assert number(rounded, "logit_error") > 10 * number(plain, "logit_error")


@needs_native
def test_configurations_share_one_run_of_float32_and_get_what_each_gets_alone(tiny: str) -> None:
    options = EngineOptions(model=tiny)
    model = load_model(options, lambda done, total: None, datetime.now)
    tokens = model.tokenizer.encode(read_text(None), add_special=False)[:300]
    both = [replace(options, kv_cache_dtype=cache) for cache in ("f16", "f32")]
    together = measure_quality(model, model, both, tokens, quiet=True)
    assert together == [measure_quality(model, model, [one], tokens, quiet=True)[0] for one in both]


@pytest.mark.parametrize(("wanted", "begin"), [(True, (BEGIN,)), (False, ())])
def test_windows_begin_with_what_the_model_wants_before_a_text(tiny: str, wanted: bool, begin: tuple[int, ...]) -> None:
    metadata = {**read_gguf(Path(tiny)).metadata, "tokenizer.ggml.add_bos_token": wanted}
    assert beginning(tokenizer_from_gguf(metadata)) == begin


def test_less_text_than_asked_for_is_said(tiny: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("plait._native")
    (tmp_path / "short.txt").write_text("a text of 24 characters.")
    assert main(["bench", "quality", "--model", tiny, "--text", str(tmp_path / "short.txt"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("the text has 24 tokens, not 20,000; all of them are scored\n")
    found = json.loads(out)
    assert (found["text"], found["num_tokens"], found["change_error"]) == ("short.txt", 23, None)
