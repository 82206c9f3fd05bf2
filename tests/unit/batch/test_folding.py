"""Folding: what asks for the same is computed once, told to everybody, and never an error."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.unit.api.byte_text import MODEL, byte_text
from tests.unit.batch.jobs import chat_line, completion_line, config_of, ports_of, run, write_input
from tests.unit.batch.scripted_client import ScriptedClient, words_of
from tests.unit.batch.test_killed import child_of, recorded
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.api.answers import Usage
from plait.api.bodies import JsonObject
from plait.batch import folding
from plait.batch.folding import request_key
from plait.batch.lines import BatchLine, read_lines
from plait.batch.preparing import Preparer
from plait.batch.runner import run_batch
from plait.batch.source import open_source
from plait.core.errors import EngineStopped
from plait.core.request import Request
from plait.sched.blend.feeds import JobOrder, Ordering
from plait.text.grammar import Grammars

DRAWN: JsonObject = {"temperature": 0.9, "seed": 7}
BASE = chat_line("base", "hello", max_tokens=5)
SCHEMA: JsonObject = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "object", "required": ["a"]}},
}


def keys_of(folder: Path, *lines: JsonObject) -> list[bytes]:
    named = [{**line, "custom_id": f"id-{number}"} for number, line in enumerate(lines)]
    path = write_input(folder / "keys.jsonl", named)
    with open_source(str(path)) as source:
        text = byte_text()
        preparer = Preparer(replace(text, grammars=Grammars(text.tokenizer)), MODEL, ("other",), source.sha256, 0)
        read = list(read_lines(source))
    assert all(isinstance(line, BatchLine) for line in read)
    return [request_key(preparer.prepare(line)) for line in read if isinstance(line, BatchLine)]


@pytest.mark.parametrize(
    "same",
    [
        chat_line("x", "hello", max_completion_tokens=5),
        chat_line("x", "hello", max_tokens=5, seed=3),
        chat_line("x", "hello", max_tokens=5, top_p=1.0, n=1, stop=None, tools=None),
        chat_line("x", "hello", max_tokens=5, user="somebody", stream=False),
        {**BASE, "body": dict(reversed(list(BASE["body"].items())))},  # type: ignore[union-attr]
    ],
)
def test_other_words_for_the_same_are_the_same(tmp_path: Path, same: JsonObject) -> None:
    one, other = keys_of(tmp_path, BASE, same)
    assert one == other


def test_what_makes_another_answer_or_tells_it_otherwise_is_another_request(tmp_path: Path) -> None:
    others = [
        chat_line("x", "hello"),
        chat_line("x", "hallo", max_tokens=5),
        chat_line("x", "hello", max_tokens=6),
        chat_line("x", "hello", max_tokens=5, n=2),
        chat_line("x", "hello", max_tokens=5, stop="l"),
        chat_line("x", "hello", max_tokens=5, ignore_eos=True),
        chat_line("x", "hello", max_tokens=5, logprobs=True),
        chat_line("x", "hello", max_tokens=5, logprobs=True, top_logprobs=2),
        chat_line("x", "hello", max_tokens=5, return_token_ids=True),
        chat_line("x", "hello", max_tokens=5, service_tier="flex"),
        chat_line("x", "hello", max_tokens=5, model="other"),
        chat_line("x", "hello", max_tokens=5, cache_salt="mine"),
        chat_line("x", "hello", max_tokens=5, priority=1),
        chat_line("x", "hello", max_tokens=5, response_format={"type": "json_object"}),
        chat_line("x", "hello", max_tokens=5, response_format=SCHEMA),
        chat_line("x", "hello", max_tokens=5, **DRAWN),
        chat_line("x", "hello", max_tokens=5, **{**DRAWN, "seed": 8}),
        chat_line("x", "hello", max_tokens=5, temperature=0.9),
        chat_line("y", "hello", max_tokens=5, temperature=0.9),
        completion_line("x", "hello", max_tokens=5),
        completion_line("x", ["hello", "hello"], max_tokens=5),
        completion_line("x", ["hellohello"], max_tokens=5),
        completion_line("x", "hello", max_tokens=5, echo=True),
    ]
    keys = keys_of(tmp_path, BASE, *others)
    assert len(set(keys)) == len(keys)
    assert keys_of(tmp_path, chat_line("x", "a", **DRAWN), chat_line("x", "a", **DRAWN))[0] is not None
    drawn = keys_of(tmp_path, chat_line("x", "a", **DRAWN), chat_line("y", "a", **DRAWN))
    assert drawn[0] == drawn[1]


def some_lines() -> list[JsonObject | str]:
    """34 that can be answered, of 13 kinds, among lines that cannot."""
    found: list[JsonObject | str] = [
        chat_line("chat", "tell me a tale", max_tokens=30),
        "no json at all",
        chat_line("drawn", "tell me a tale", **DRAWN),
        completion_line("two", ["two", "prompts"], n=2, return_token_ids=True),
        chat_line("refused", "refuse"),
        chat_line("scored", "tell", logprobs=True),
    ]
    found += [chat_line(f"a{number}", f"say {number % 9}", max_tokens=4) for number in range(27)]
    return [
        *found,
        chat_line("scored again", "tell", logprobs=True),
        completion_line("two again", ["two", "prompts"], n=2, return_token_ids=True),
        chat_line("drawn again", "tell me a tale", **DRAWN),
        chat_line("refused again", "refuse"),
        chat_line("chat", "the same name again"),
    ]


def test_every_line_has_the_answer_that_it_would_have_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, usages, numbers = [], list[tuple[Usage, Usage]](), count()
    for name in ("folded", "alone"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "alone":
            monkeypatch.setattr("plait.batch.serving.request_key", lambda call: str(next(numbers)).encode())
        client = ScriptedClient()
        summary = run(config_of(folder, some_lines()), client)
        outputs.append((folder / "out.jsonl").read_bytes())
        assert (summary.lines_completed, summary.lines_failed) == (34, 4)
        usages.append((summary.job_usage, summary.run_usage))
        if name == "folded":
            # Nobody is told of another's refusal: both were asked.
            assert len(client.submitted) == 1 + 1 + 2 + 1 + 9 + 2
            assert summary.lines_folded == 34 - 13
        else:
            assert summary.lines_folded == 0
    assert outputs[0] == outputs[1]
    assert usages[0][0] == usages[1][0] == usages[1][1]
    assert usages[0][1].output_tokens < usages[0][0].output_tokens / 2


@pytest.mark.parametrize("order", JobOrder)
@pytest.mark.parametrize("max_in_flight", [1, 3, 200])
def test_whatever_the_order_each_request_is_asked_once(tmp_path: Path, order: JobOrder, max_in_flight: int) -> None:
    client = ScriptedClient()
    config = replace(config_of(tmp_path, some_lines()), max_in_flight=max_in_flight)
    ordering = Ordering(order, EvenLives(), 2000.0, seed=1)
    summary = run_batch(config, replace(ports_of(client), ordering=ordering))
    assert (summary.lines_completed, summary.lines_folded) == (34, 21)
    asked = Counter(words_of(request) for request in client.submitted if "refuse" not in words_of(request))
    assert set(asked.values()) == {1, 2}
    assert sorted(words for words, times in asked.items() if times == 2) == ["tell me a tale"]
    given = tmp_path / "given"
    given.mkdir()
    run(config_of(given, some_lines()))
    assert (tmp_path / "out.jsonl").read_bytes() == (given / "out.jsonl").read_bytes()


def test_who_waits_for_one_that_fails_is_run_itself(tmp_path: Path) -> None:
    """A failure is that line's own: here the first two of five are unlucky."""
    client = ScriptedClient()
    unlucky = iter(range(2))

    def on_submit(request: Request) -> None:
        if next(unlucky, None) is not None:
            object.__setattr__(request, "prompt", tuple(b"fail"))

    client.on_submit = on_submit
    summary = run(config_of(tmp_path, [chat_line(f"id-{number}", "hello") for number in range(5)]), client)
    assert (summary.lines_completed, summary.lines_failed, summary.lines_folded) == (3, 2, 2)
    assert len(client.submitted) == 3


def test_more_wait_than_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MOST_WAITING", 5)
    most = 0
    joins = folding.Folds.joins

    def noting(folds: folding.Folds, line: BatchLine, request: bytes) -> None:
        nonlocal most
        joins(folds, line, request)
        most = max(most, folds.num_waiting)

    monkeypatch.setattr(folding.Folds, "joins", noting)
    client = ScriptedClient()
    lines = [chat_line(f"id-{number}", "hello" if number % 10 else f"say {number}") for number in range(200)]
    summary = run(replace(config_of(tmp_path, lines), max_in_flight=4), client)
    assert (summary.lines_completed, summary.lines_folded) == (200, 179)
    assert len(client.submitted) == 21
    assert 0 < most <= 5 + 4


def test_a_second_run_hands_on_what_the_first_one_recorded(tmp_path: Path) -> None:
    lines = [chat_line(f"id-{number}", f"say {number % 10}") for number in range(40)]
    config = replace(config_of(tmp_path, lines), max_in_flight=1)
    left = iter(range(10))

    def on_submit(request: Request) -> None:
        if next(left, None) is None:
            raise EngineStopped("enough")

    # The tenth request is in the ledger when the run is cut short, and no line behind it was read.
    monkey = ScriptedClient(on_submit=on_submit)
    monkey.pause = lambda request: stop_after(request, "say 9")
    with pytest.raises(EngineStopped):
        run(config, monkey)
    again = ScriptedClient()
    summary = run(config, again)
    assert [words_of(request) for request in again.submitted] == ["say 9"]
    assert (summary.lines_completed, summary.lines_resumed, summary.lines_folded) == (40, 9, 30)
    assert summary.run_usage == Usage(len(again.submitted[0].prompt), 2, 5)


def stop_after(request: Request, words: str) -> asyncio.Future[None] | None:
    if words_of(request) == words:
        raise EngineStopped("enough")
    return None


def test_killed_at_any_moment_no_request_is_computed_again_once_it_is_recorded(tmp_path: Path) -> None:
    """Each request stands in the file three times, far apart and side by side."""
    numbers = [number % 120 for number in range(240)] + list(range(120))
    random.Random(3).shuffle(numbers)
    lines: list[JsonObject | str] = [chat_line(f"id-{place}", f"say {one:04}") for place, one in enumerate(numbers)]
    lines.append(chat_line("endless", "say 9999"))
    config = config_of(tmp_path, lines)
    moments = random.Random(5)
    done: set[int] = set()
    asked_before: Counter[int] = Counter()
    for _ in range(5):
        with child_of(config, last=9999) as child:
            child.wait_until("ready")
            time.sleep(moments.uniform(0.0, 0.06))
            os.kill(child.process.pid, signal.SIGKILL)
            child.process.wait()
        words = child.journal.read_text().split("\n")[:-1]
        asked = Counter(int(one.removeprefix("say ")) for one in words)
        assert [one for one in done if asked[one] != asked_before[one]] == []
        done = {numbers[number - 1] for number in recorded(config)}
        asked_before = asked
    client = ScriptedClient()
    summary = run(config, client)
    assert sorted(int(words_of(request).removeprefix("say ")) for request in client.submitted) == sorted(
        ({*range(120)} - done) | {9999}
    )
    assert (summary.lines_completed, summary.lines_folded) == (361, 240)
    with closing(sqlite3.connect(config.ledger)) as connection:
        computed = connection.execute("SELECT count(*) FROM lines WHERE NOT folded GROUP BY request").fetchall()
    assert computed == [(1,)] * 121
    ids = [json.loads(line)["response"]["body"]["id"] for line in config.output.read_text().splitlines()]
    assert len(set(ids)) == 361


def test_ids_are_a_line_s_own_and_what_the_model_said_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where an answer holds what the ids of another line are made of."""
    keys: dict[int, str] = {}
    key = Preparer.key

    def noting(preparer: Preparer, number: int) -> str:
        keys[number] = key(preparer, number)
        return keys[number]

    monkeypatch.setattr(Preparer, "key", noting)
    body: JsonObject = {
        "id": "chatcmpl-ab",
        "choices": [{"text": "id ab", "tool_calls": [{"id": "call_ab00"}]}],
        "n": 1,
    }
    assert folding._renamed(body, "ab", "cd") == {
        "id": "chatcmpl-cd",
        "choices": [{"text": "id ab", "tool_calls": [{"id": "call_cd00"}]}],
        "n": 1,
    }
    config = config_of(tmp_path, [chat_line("a", "hello"), chat_line("b", "hello")])
    run(config)
    first, second = (json.loads(line) for line in config.output.read_text().splitlines())
    assert (first["response"]["body"]["id"], second["response"]["body"]["id"]) == (
        f"chatcmpl-{keys[1]}",
        f"chatcmpl-{keys[2]}",
    )
    assert second["response"]["request_id"] == f"req_{keys[2]}"
