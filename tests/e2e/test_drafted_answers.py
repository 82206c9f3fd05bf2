"""Answers with drafts are those without, on real prompts: Spec-Bench, GSM8K and HumanEval, greedy and drawn, with their
log-probabilities to the last bit. The default model answers them.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from plait.cli.main import main

pytest.importorskip("plait._native", reason="promised on bit-exact executors, of which that is one")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FILES = ("speculation_prompts.jsonl", "verify_prompts.jsonl")
MAX_TOKENS = 64
RAG_PROMPTS = 6
"""Of those about passages, which are long: computing them is most of the time."""


def lines() -> list[dict[str, Any]]:
    """A chat or a raw prompt each; every second is drawn with a seed of its own."""
    found: list[dict[str, Any]] = []
    num_rag = 0
    for name in FILES:
        for text in resources.files("plait").joinpath(f"resources/{name}").read_text(encoding="utf-8").splitlines():
            told = json.loads(text)
            num_rag += told.get("set") == "rag"
            if told.get("set") == "rag" and num_rag > RAG_PROMPTS:
                continue
            messages = told.get("messages") or [{"role": "user", "content": told.get("prompt", "")}]
            raw = told.get("text") or (told.get("prompt") if name == FILES[1] else None)
            body: dict[str, Any] = {"prompt": raw} if raw else {"messages": messages}
            number = len(found)
            body |= {"model": "default", "max_tokens": MAX_TOKENS, "seed": number, "temperature": 0.8 * (number % 2)}
            body |= {"logprobs": 1} if raw else {"logprobs": True, "top_logprobs": 1}
            if "schema" in told:
                body["response_format"] = {
                    "type": "json_schema",
                    "json_schema": {"name": "form", "schema": told["schema"]},
                }
            url = "/v1/completions" if raw else "/v1/chat/completions"
            found.append({"custom_id": f"{number:03}", "method": "POST", "url": url, "body": body})
    return found


def answers(folder: Path, name: str, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[Any, Any]:
    """Choices by line, and what drafts came to."""
    given, output = folder / "in.jsonl", folder / f"{name}.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines()), encoding="utf-8")
    assert main(["batch", "-i", str(given), "-o", str(output), "--quiet", "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    found = {one["custom_id"]: one for one in map(json.loads, output.read_text(encoding="utf-8").splitlines())}
    return {key: found[key]["response"]["body"]["choices"] for key in sorted(found)}, told["run"]["drafts"]


def test_they_are_equal_to_the_last_bit_alone_in_company_and_behind_preemptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, none = answers(tmp_path, "plain", capsys)
    assert none is None
    assert len(plain) == len(lines()) > 100
    ways = {
        "alone": ("--max-num-seqs", "1"),
        "company": ("--max-num-seqs", "6", "--no-enable-prefix-caching"),
        "tight": ("--max-num-seqs", "16", "--max-model-len", "1536", "--kv-cache-memory", "48MiB"),
    }
    for name, options in ways.items():
        drafted, drafts = answers(tmp_path, name, capsys, "--speculative", "ngram", *options)
        assert drafted == plain, name
        assert drafts["accepted"] > (500 if name == "alone" else 0), name
