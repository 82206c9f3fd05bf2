"""Model files whose token tables and vocabularies differ in size, from the command to its answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.tiny_model import NUM_TOKENS, write_tiny_model

from plait.api.bodies import JsonObject, JsonValue

PLAIT = [sys.executable, "-c", "import sys; from plait.cli.main import main; sys.exit(main())"]
PADDED_ROWS = 320


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tight") / "tiny.gguf")


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("padded") / "tiny.gguf", table_rows=PADDED_ROWS)


def batch(folder: Path, model: Path, bodies: list[JsonObject]) -> subprocess.CompletedProcess[str]:
    lines = [
        {"custom_id": str(place), "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", **body}}
        for place, body in enumerate(bodies)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "-m", str(model)]
    return subprocess.run([*PLAIT, "batch", *files, "--quiet"], capture_output=True, text=True, timeout=100)


def answers(folder: Path, model: Path, bodies: list[JsonObject]) -> list[tuple[int, dict[str, JsonValue]]]:
    """Status and body of each answer, in the order of the questions."""
    folder.mkdir()
    done = batch(folder, model, bodies)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    outputs = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    outputs.sort(key=lambda output: int(output["custom_id"]))
    return [(output["response"]["status_code"], output["response"]["body"]) for output in outputs]


def long_answers(**fields: JsonValue) -> JsonObject:
    prompts: list[JsonValue] = ["a", "bc", "The quick brown fox"]
    return {"prompt": prompts, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True, **fields}


def test_padding_is_never_said_nor_counted(tmp_path: Path, tight: Path, padded: Path) -> None:
    bodies = [
        long_answers(temperature=0, logprobs=5),
        long_answers(temperature=2.0, seed=7, logprobs=5),
        long_answers(temperature=1.0, seed=8, top_p=0.9, repetition_penalty=1.3),
    ]
    expected = answers(tmp_path / "tight", tight, bodies)
    given = answers(tmp_path / "padded", padded, bodies)
    for (status, body), (_, same) in zip(given, expected, strict=True):
        assert status == 200
        for choice, like in zip(body["choices"], same["choices"], strict=True):
            assert len(choice["token_ids"]) == 40
            assert choice["token_ids"] == like["token_ids"]
            assert choice["text"] == like["text"]
            if like["logprobs"] is not None:
                assert choice["logprobs"]["token_logprobs"] == pytest.approx(
                    like["logprobs"]["token_logprobs"], abs=1e-5
                )
                assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [
                    len(top) for top in like["logprobs"]["top_logprobs"]
                ]


def test_padding_cannot_be_asked_for(tmp_path: Path, padded: Path) -> None:
    given = answers(
        tmp_path / "padded",
        padded,
        [
            {"prompt": [NUM_TOKENS - 1], "max_tokens": 2},
            {"prompt": [[97], [98, NUM_TOKENS]], "max_tokens": 2},
            {"prompt": [PADDED_ROWS - 1], "max_tokens": 2},
            {"prompt": "a", "max_tokens": 2, "logit_bias": {str(NUM_TOKENS): 100}},
            {"prompt": "a", "max_tokens": 2, "stop_token_ids": [NUM_TOKENS]},
        ],
    )
    assert [status for status, _ in given] == [200, 400, 400, 400, 400]
    faults = [body["error"] for _, body in given[1:]]
    assert [fault["param"] for fault in faults] == ["prompt.1", "prompt", "logit_bias", "stop_token_ids"]
    assert faults[0]["message"] == f"prompt.1 holds token {NUM_TOKENS}; this model's ids go from 0 to {NUM_TOKENS - 1}"


@pytest.mark.parametrize(
    ("rows", "said", "fault"),
    [
        (256, 256, f"llama.vocab_size is 256 but tokenizer.ggml.tokens holds {NUM_TOKENS} tokens"),
        (256, NUM_TOKENS, f"'token_embd.weight' has shape (256, 32), not ({NUM_TOKENS}, 32)"),
        (PADDED_ROWS, NUM_TOKENS, f"'token_embd.weight' has shape ({PADDED_ROWS}, 32), not ({NUM_TOKENS}, 32)"),
    ],
)
def test_tables_that_do_not_hold_what_the_header_says_are_one_line(
    tmp_path: Path, rows: int, said: int, fault: str
) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", table_rows=rows, rows_said=said)
    done = batch(tmp_path, model, [{"prompt": "a"}])
    assert done.returncode == 1
    assert done.stderr.startswith(f"plait: {model}: ")
    assert done.stderr.count("\n") == 1
    assert fault in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
