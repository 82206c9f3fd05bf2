"""`--speculative` from the option to the engine: the same answers, and refused or left out where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.models import tiny_model
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.cost.invented import ABOUT

from plait.build import load_executor, load_model
from plait.cli.main import main
from plait.config.engine_options import EngineOptions
from plait.config.schedulers import parse_scheduler
from plait.core.clock import RealClock
from plait.core.errors import ModelError, UsageError
from plait.cost.hardware import find_hardware, write_hardware
from plait.draft.depth import FixedDepth
from plait.exec.native import presence
from plait.loading import check_pair
from plait.model.families import build_program


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def test_a_batch_has_the_same_answers_with_drafts_and_says_what_they_came_to(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "in.jsonl"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["one of few", "one of many"]}}}
    bodies = [
        {"prompt": "to and fro and " * 4, "max_tokens": 60, "temperature": 0, "ignore_eos": True},
        {"prompt": "to and fro and " * 4, "max_tokens": 60, "seed": 5, "presence_penalty": 1, "logprobs": 2},
        {"prompt": "say", "max_tokens": 40, "seed": 6, "response_format": schema},
        {"prompt": "so and so and " * 3, "max_tokens": 40, "seed": 7, "n": 3, "temperature": 0.5, "ignore_eos": True},
        {"prompt": "fro and to and " * 3, "max_tokens": 30, "temperature": 0, "echo": True, "logprobs": 1},
        {
            "prompt": "to and fro and " * 4,
            "max_tokens": 50,
            "temperature": 0,
            "ignore_eos": True,
            "stop": ["d t", "zz"],
        },
    ]
    asked = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", **body}}
        for number, body in enumerate(bodies)
    ]
    lines.write_text("".join(json.dumps(one) + "\n" for one in asked))
    found, told = [], []
    for speculative in ("off", "ngram"):
        output = tmp_path / f"{speculative}.jsonl"
        options = ["-m", str(path), "--speculative", speculative, "--quiet", "--json"]
        assert main(["batch", "-i", str(lines), "-o", str(output), *options]) == 0
        told.append(json.loads(capsys.readouterr().out)["run"]["drafts"])
        answers = sorted(map(json.loads, output.read_text().splitlines()), key=lambda one: one["custom_id"])
        bodies_back = [one["response"]["body"] for one in answers]
        # How much of an equal prompt was found again depends on when the lines came.
        found.append([(one["choices"], one["usage"]["completion_tokens"]) for one in bodies_back])
    assert found[0] == found[1]
    assert told[0] is None
    assert told[1]["proposed"] >= told[1]["accepted"] == told[1]["saved_steps"]


def batch(path: Path, tmp_path: Path, name: str, *options: str) -> list[object]:
    """Answers of two lines, greedy and drawn."""
    lines, output = tmp_path / "in.jsonl", tmp_path / f"{name}.jsonl"
    bodies = [
        {"prompt": "to and fro and " * 3, "max_tokens": 60, "temperature": 0, "ignore_eos": True},
        {"prompt": "here and there", "max_tokens": 60, "seed": 5, "presence_penalty": 1, "logprobs": 2},
    ]
    asked = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", **body}}
        for number, body in enumerate(bodies)
    ]
    lines.write_text("".join(json.dumps(one) + "\n" for one in asked))
    assert main(["batch", "-i", str(lines), "-o", str(output), "-m", str(path), "--quiet", *options]) == 0
    answers = sorted(map(json.loads, output.read_text().splitlines()), key=lambda one: one["custom_id"])
    return [one["response"]["body"]["choices"] for one in answers]


@pytest.mark.skipif(presence.missing() is not None, reason="needs the native runtime")
def test_a_batch_has_the_same_answers_with_a_draft_model(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model itself, rounded to four bits; asked whatever it costs."""
    plain = batch(path, tmp_path, "off")
    options = ("--speculative", "model", "--draft-model", str(path))
    assert batch(path, tmp_path, "priced", *options) == plain
    asked: list[FixedDepth] = []
    monkeypatch.setattr("plait.build.PricedDepth", lambda: asked.append(FixedDepth(3)) or asked[-1])
    assert batch(path, tmp_path, "fixed", *options) == plain
    assert asked


@pytest.mark.skipif(presence.missing() is not None, reason="needs the native runtime")
def test_a_draft_model_is_loaded_beside_the_model_into_one_memory(path: Path) -> None:
    options = EngineOptions(model=str(path), speculative="model", draft_model=str(path), kv_cache_memory=1 << 20)
    model = load_model(options, lambda done, total: None, datetime.now)
    assert model.draft is not None
    assert model.draft.notes == ("its weights are rounded to int4, because guesses need not be exact",)
    ready = load_executor(options, model, RealClock())
    ready.executor.close()
    assert ready.draft is not None
    assert ready.draft.layout.page_bytes == ready.layout.page_bytes
    assert ready.draft.layout.num_pages == ready.layout.num_pages
    assert 0.1 < ready.draft.weight_share < 0.6  # the table of embeddings is as in the file
    assert any(note.startswith("draft model tiny: ") and "packed weights" in note for note in ready.notes)
    # Half as many tokens fit as without, because every one may be kept twice.
    alone = EngineOptions(model=str(path), kv_cache_memory=1 << 20)
    single = load_executor(alone, replace(model, draft=None), RealClock())
    single.executor.close()
    assert ready.sizes.capacity_tokens <= single.sizes.capacity_tokens // 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speculative": "model"}, "--speculative model needs a model that drafts: name it with --draft-model"),
        ({"draft_model": "x"}, "--draft-model x is not used with --speculative off; add --speculative model, or"),
        (
            {"draft_model": "x", "speculative": "ngram"},
            "--draft-model x is not used with --speculative ngram; add --speculative model, or leave it out",
        ),
        (
            {"draft_model": "x", "speculative": "model", "executor": "reference"},
            "--executor reference runs no draft model; take --executor native, or --speculative ngram",
        ),
        (
            {"draft_model": "x", "speculative": "model", "scheduler": parse_scheduler("plait")},
            "--scheduler plait asks no draft model yet; take --scheduler chunked, or --speculative ngram",
        ),
        (
            {"draft_model": "x", "speculative": "model", "profile": Path("trace.json")},
            "--profile does not tell a draft model's steps apart yet; leave it out, or --draft-model",
        ),
        (
            {"draft_model": "x", "speculative": "model", "kv_layout": "uniform"},
            "--kv-layout uniform has no place for a draft model; take --kv-layout paged",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_looked_for(options: dict[str, Any], words: str) -> None:
    asked = replace(EngineOptions(model="no/such/model"), **options)
    with pytest.raises(UsageError) as raised:
        load_model(asked, lambda done, total: pytest.fail("something is fetched"), datetime.now)
    assert str(raised.value).startswith(words)


def test_a_model_of_other_tokens_or_a_larger_one_is_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(path.read_bytes().replace(b"<|end|>", b"<|fin|>"))
    options = EngineOptions(model=str(path), speculative="model", draft_model=str(other))
    with pytest.raises(ModelError, match=r"token \d+ is b'<\|fin\|>' there and b'<\|end\|>' in tiny, so its guesses"):
        load_model(options, lambda done, total: None, datetime.now)
    model = load_model(EngineOptions(model=str(path)), lambda done, total: None, datetime.now)
    with pytest.raises(ModelError, match=r"has 100 tokens and tiny has \d+, so its guesses would be other text"):
        check_pair(model, replace(model, program=tiny_model().program), "x")
    config = replace(model.config, num_layers=3, layer_visibility=model.config.layer_visibility[:1] * 3)
    with pytest.raises(ModelError, match="million numbers and tiny has 0: its steps would take longer than those"):
        check_pair(model, replace(model, program=build_program(config)), "x")
    check_pair(model, model, "x")


@pytest.mark.skipif(presence.missing() is not None, reason="needs the native runtime")
def test_too_little_memory_for_both_is_said_with_what_they_need(path: Path) -> None:
    options = EngineOptions(model=str(path), speculative="model", draft_model=str(path), kv_cache_memory=5000)
    model = load_model(options, lambda done, total: None, datetime.now)
    with pytest.raises(UsageError, match=r"--kv-cache-memory is 5000 bytes but the smallest KV cache takes \d+; give"):
        load_executor(options, model, RealClock())


def test_schedulers_that_price_steps_verify_drafts_as_well(path: Path, tmp_path: Path) -> None:
    """With invented prices, in which rows are nearly free."""
    (tmp_path / "hardware").mkdir()
    write_hardware(
        replace(find_hardware("zen3-2core"), calibration=ABOUT), tmp_path / "hardware" / "this-machine.json", "invented"
    )
    lines = tmp_path / "in.jsonl"
    body = {"model": "tiny", "prompt": "to and fro and " * 4, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    asked = [{"custom_id": str(at), "method": "POST", "url": "/v1/completions", "body": body} for at in range(2)]
    lines.write_text("".join(json.dumps(one) + "\n" for one in asked))
    found = []
    for speculative in ("off", "ngram"):
        output = tmp_path / f"{speculative}.jsonl"
        options = ["-m", str(path), "--speculative", speculative, "--quiet", "--scheduler", "plait", "--threads", "2"]
        assert main(["batch", "-i", str(lines), "-o", str(output), *options, "--cache-dir", str(tmp_path)]) == 0
        answers = sorted(map(json.loads, output.read_text().splitlines()), key=lambda one: one["custom_id"])
        found.append([one["response"]["body"]["choices"] for one in answers])
    assert found[0] == found[1]
