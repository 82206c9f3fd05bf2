"""`--speculative` from the option to the engine: the same answers, and refused or left out where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.cost.invented import ABOUT

from plait.cli.main import main
from plait.cost.hardware import find_hardware, write_hardware


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
