"""The same requests through `plait batch` and through `LLM`: the same answers, choice by choice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait import LLM, SamplingParams
from plait.api.bodies import JsonObject
from plait.cli.main import main

LONG = "A beginning that is longer than a block of the cache, so that it is shared. "
CHAT: JsonObject = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 9}
BODIES: list[tuple[str, JsonObject]] = [
    ("completions", {"prompt": "greedy", "temperature": 0}),
    ("completions", {"prompt": f"{LONG}seeded", "temperature": 1, "seed": 5, "n": 5}),
    ("completions", {"prompt": ["one", "two"], "temperature": 1, "seed": 6, "n": 3}),
    ("completions", {"prompt": [72, 101, 108, 108, 111], "temperature": 0, "n": 2}),
    ("chat/completions", {**CHAT, "temperature": 0.7, "seed": 9, "n": 4}),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def through_batch(folder: Path, model: Path) -> list[JsonObject]:
    common: JsonObject = {"ignore_eos": True, "return_token_ids": True}
    lines = [
        {"custom_id": f"{place}", "method": "POST", "url": f"/v1/{url}", "body": {**common, **body}}
        for place, (url, body) in enumerate(BODIES)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl")]
    assert main(["batch", *files, "-m", str(model), "--quiet", "--kv-cache-memory", "4MiB"]) == 0
    return [json.loads(line)["response"]["body"] for line in (folder / "out.jsonl").read_text().splitlines()]


def test_answers_are_equal_and_choices_in_order(tmp_path: Path, tiny: Path) -> None:
    bodies = through_batch(tmp_path, tiny)
    with LLM(tiny, kv_cache_memory="4MiB") as llm:
        params = [
            SamplingParams(
                n=body.get("n", 1),  # type: ignore[arg-type]
                temperature=body["temperature"],  # type: ignore[arg-type]
                seed=body.get("seed"),  # type: ignore[arg-type]
                max_tokens=body.get("max_completion_tokens", 16),  # type: ignore[arg-type]
                ignore_eos=True,
            )
            for _, body in BODIES
        ]
        prompts = ["greedy", f"{LONG}seeded", "one", "two", {"prompt_token_ids": list(b"Hello")}]
        outputs = llm.generate(prompts, [*params[:3], params[2], params[3]], use_tqdm=False)  # type: ignore[arg-type]
        (chat,) = llm.chat(CHAT["messages"], params[4], use_tqdm=False)  # type: ignore[arg-type]
    expected = [outputs[:1], outputs[1:2], outputs[2:4], outputs[4:5], [chat]]
    for body, answers in zip(bodies, expected, strict=True):
        choices = [choice for answer in answers for choice in answer.outputs]
        assert [choice["index"] for choice in body["choices"]] == list(range(len(choices)))  # type: ignore[index, union-attr]
        texts = [one["text"] if "text" in one else one["message"]["content"] for one in body["choices"]]  # type: ignore[index, operator, union-attr]
        assert texts == [choice.text for choice in choices]
        assert [one["token_ids"] for one in body["choices"]] == [choice.token_ids for choice in choices]  # type: ignore[index, union-attr]


def test_usage_counts_a_prompt_once_and_every_choice(tmp_path: Path, tiny: Path) -> None:
    usages = [body["usage"] for body in through_batch(tmp_path, tiny)]
    assert [usage["prompt_tokens"] for usage in usages] == [6, len(LONG) + 6, 6, 5, 8]  # type: ignore[index, call-overload]
    assert [usage["completion_tokens"] for usage in usages] == [16, 80, 96, 32, 36]  # type: ignore[index, call-overload]
