"""`--speculative` from the option to the engine: the same answers, and refused or left out where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.conformance.models import tiny_rwkv
from tests.e2e.tiny_model import write_tiny_model

from plait.build import drafting_of, load_model, policy_of
from plait.cli.main import main
from plait.config.engine_options import EngineOptions
from plait.config.schedulers import parse_scheduler
from plait.core.errors import UsageError


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


def test_schedulers_that_price_steps_refuse_it_before_anything_is_loaded(path: Path) -> None:
    options = EngineOptions(model=str(path), speculative="ngram", scheduler=parse_scheduler("plait"))
    model = load_model(options, lambda done, total: None, datetime.now)
    with pytest.raises(UsageError, match="--speculative ngram is not there for --scheduler plait yet; take"):
        drafting_of(options, model)
    # Nor is somebody sent to measure his machine first, or told another fault, whatever asks.
    with pytest.raises(UsageError, match="--speculative ngram is not there for --scheduler plait yet; take"):
        policy_of(options, model, pytest.fail)


def test_a_model_with_states_is_served_without_and_says_so(path: Path) -> None:
    options = EngineOptions(model=str(path), speculative="ngram")
    model = load_model(options, lambda done, total: None, datetime.now)
    assert drafting_of(options, model)[0] is not None
    drafting, notes = drafting_of(options, replace(model, program=tiny_rwkv().program))
    assert drafting is None
    assert notes == ("no drafts: what this model keeps of its tokens cannot be taken back behind rejected ones",)
