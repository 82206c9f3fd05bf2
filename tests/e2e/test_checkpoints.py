"""`plait batch` on model directories: the answers of the same weights in a GGUF file, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.e2e.tiny_checkpoint import framed, write_tiny_checkpoint
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.weights.fake_hub import FakeHub, serving
from tests.unit.weights.stores_on_disk import write_ollama

from plait.api.bodies import JsonObject, JsonValue
from plait.cli.main import main
from plait.exec.native import presence

EXECUTORS = ["reference", *(["native"] if presence.missing() is None else [])]
CHAT: JsonObject = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 12,
    "logprobs": True,
    "top_logprobs": 3,
}
LONG: JsonObject = {"prompt": ["a", "bc <|end|>", "The quick brown fox"], "max_tokens": 30, "logprobs": 5}
WARM: JsonObject = {"prompt": "löwe 🦁", "max_tokens": 30, "temperature": 1.5, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def answers(folder: Path, model: object, *options: str) -> list[JsonValue]:
    """What each line was answered, without what tells one run from another."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [("chat/completions", CHAT), ("completions", LONG), ("completions", WARM)]
    requests = [
        {"custom_id": str(place), "method": "POST", "url": f"/v1/{url}", "body": {"model": "default", **body}}
        for place, (url, body) in enumerate(lines)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in requests))
    names = ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "-m", str(model)]
    command: Sequence[str] = ["batch", *names, "--cache-dir", str(folder / "cache"), "--quiet", "--restart", *options]
    assert main(command) == 0
    return answered(folder)


def answered(folder: Path) -> list[JsonValue]:
    outputs = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    outputs.sort(key=lambda output: int(output["custom_id"]))
    bodies = [output["response"]["body"] for output in outputs]
    return [[body["choices"], body["usage"]] for body in bodies]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_directory_answers_as_the_same_weights_in_a_gguf_file(tmp_path: Path, gguf: Path, executor: str) -> None:
    expected = answers(tmp_path / "gguf", gguf, "--executor", executor)
    assert len(str(expected)) > 3000
    whole, shards = write_tiny_checkpoint(tmp_path / "whole"), write_tiny_checkpoint(tmp_path / "shards", shards=3)
    odd = write_tiny_checkpoint(tmp_path / "odd")
    raw = (odd / "model.safetensors").read_bytes()
    header = int.from_bytes(raw[:8], "little")
    # No number of the file lies at a multiple of its size.
    (odd / "model.safetensors").write_bytes(framed(raw[8 : 8 + header] + b" ", raw[8 + header :], align=1))
    for model in (whole, whole / "model.safetensors", shards, odd):
        assert answers(tmp_path / "out", model, "--executor", executor) == expected


@pytest.mark.parametrize("executor", EXECUTORS)
def test_padding_rows_of_a_directory_are_never_said(tmp_path: Path, executor: str) -> None:
    padded = write_tiny_model(tmp_path / "padded.gguf", table_rows=320)
    directory = write_tiny_checkpoint(tmp_path / "padded", table_rows=320)
    expected = answers(tmp_path / "gguf", padded, "--executor", executor)
    assert answers(tmp_path / "out", directory, "--executor", executor) == expected


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_halves_and_rounded_weights_answer_alike_however_they_are_cut(
    tmp_path: Path, dtype: str, quantize: str
) -> None:
    whole = write_tiny_checkpoint(tmp_path / "whole", dtype=dtype)
    shards = write_tiny_checkpoint(tmp_path / "shards", dtype=dtype, shards=4)
    first, second = (answers(tmp_path / "out", model, "--quantize", quantize) for model in (whole, shards))
    assert first == second


def test_models_of_ollama_answer_by_name(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ollama(tmp_path / "store", "mine:1b", gguf.read_bytes(), template=b"{{ .Prompt }}")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    expected = answers(tmp_path / "gguf", gguf)
    for name in ("mine:1b", "ollama:mine:1b"):
        assert answers(tmp_path / "out", name) == expected
    capsys.readouterr()


def test_a_model_of_a_hub_answers_by_name_with_and_without_the_hub(tmp_path: Path) -> None:
    """In processes of their own: the hub's library reads its variables when it is imported."""
    directory = write_tiny_checkpoint(tmp_path / "tiny", shards=2)
    expected = answers(tmp_path / "directory", directory)
    folder = tmp_path / "directory"
    program = [sys.executable, "-c", "import sys; from plait.cli.main import main; sys.exit(main())", "batch"]
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    with serving(FakeHub(files)) as hub:
        told = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.address, "NO_PROXY": "127.0.0.1,localhost"}
        for variables in ({}, {"HF_HUB_OFFLINE": "1"}):
            names = ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "-m", "org/tiny", "--restart"]
            done = subprocess.run(
                [*program, *names], env={**os.environ, **told, **variables}, capture_output=True, text=True, timeout=100
            )
            assert done.returncode == 0, done.stderr
            assert ("HF_HUB_OFFLINE is set: org/tiny is the commit" in done.stderr) == bool(variables)
            assert answered(folder) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config says quant_method 'gptq'"),
        (
            {"model_type": "strange", "auto_map": {"AutoModel": "strange.Model"}, "architectures": ["Strange"]},
            "model_type 'strange' is known only to the Python code that comes with the model (auto_map), and Plait",
        ),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "model_type is 'mamba'"),
        ({"vocab_size": 200}, "the tokenizer has 262 tokens but the embedding table 200 rows"),
        ({"num_hidden_layers": 3}, "missing"),
        ({"hidden_size": 64}, "has shape"),
    ],
)
def test_what_does_not_fit_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, object], expected: str
) -> None:
    directory = write_tiny_checkpoint(tmp_path / "model", config=config)
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a"}\n')
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    assert main(["batch", *files, "-m", str(directory), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"plait: {directory}")
    assert said.count("\n") == 1
    assert expected in said
