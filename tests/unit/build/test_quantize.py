"""`--quantize` from the option to the executors: which weights are rounded, to what, and that the numbers say so."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.build import LoadedModel, load_model
from plait.cli.main import main
from plait.config.engine_options import EngineOptions
from plait.exec.native import presence
from plait.weights.formats import F32, INT8, Q4_1

EXECUTORS = ["reference", *(["native"] if presence.missing() is None else [])]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def loaded(path: Path, quantize: str) -> LoadedModel:
    return load_model(EngineOptions(model=str(path), quantize=quantize), lambda done, total: None, datetime.now)


def test_by_default_weights_are_the_files(path: Path) -> None:
    model = loaded(path, "none")
    assert {tensor.format for tensor in model.weights.values()} == {F32}
    assert (model.weights.identity, "head" in model.weights) == (model.weights.sha256, False)


def test_int8_rounds_what_is_multiplied_and_nothing_else(path: Path) -> None:
    before, after = loaded(path, "none"), loaded(path, "int8")
    assert after.program.weights["head"].shape == before.program.weights["embed"].shape
    for name, tensor in after.weights.items():
        is_multiplied = len(tensor.shape) == 2 and name != "embed"
        assert tensor.format is (INT8 if is_multiplied else F32), name
        exact = before.weights["embed" if name == "head" else name].dequantize()
        assert np.linalg.norm(tensor.dequantize() - exact) <= (0.01 if is_multiplied else 0) * np.linalg.norm(exact)
    assert after.weights.total_bytes < before.weights.total_bytes


def test_int4_keeps_the_head_in_eight_bits(path: Path) -> None:
    model = loaded(path, "int4")
    found = {name: tensor.format for name, tensor in model.weights.items() if len(tensor.shape) == 2}
    assert (found.pop("embed"), found.pop("head")) == (F32, INT8)
    assert set(found.values()) == {Q4_1}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fingerprints_and_batch_output_name_what_was_rounded(path: Path, executor: str, tmp_path: Path) -> None:
    lines = tmp_path / "in.jsonl"
    body = {"model": "tiny", "prompt": "a b", "max_tokens": 4, "temperature": 0}
    lines.write_text(json.dumps({"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
    prints = []
    for quantize in ("none", "int8", "int4"):
        output = tmp_path / f"{quantize}.jsonl"
        options = ["-m", str(path), "--executor", executor, "--quantize", quantize, "--quiet"]
        assert main(["batch", "-i", str(lines), "-o", str(output), *options]) == 0
        answer = json.loads(output.read_text())
        prints.append(answer["response"]["body"]["system_fingerprint"])
    assert not prints[0].endswith(("+int8", "+int4"))
    assert [one.rsplit("-", 1)[1] for one in prints[1:]] == [
        f"{prints[0].rsplit('-', 1)[1]}+{k}" for k in ("int8", "int4")
    ]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_answers_do_not_depend_on_the_load(path: Path, executor: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a b c d e f"}\n{"prompt": "a b c x"}\n{"prompt": "q"}\n')
    command = [
        "verify",
        str(path),
        "--prompts",
        str(prompts),
        "-n",
        "3",
        "--max-tokens",
        "6",
        "--mixes",
        "1",
        "--quiet",
    ]
    assert main([*command, "--executor", executor, "--quantize", "int8"]) == 0
