"""Whole jobs: a file in, a file out, and what happens when something is wrong with a line, the engine or the disk."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.api.byte_text import END, MODEL
from tests.unit.batch.jobs import (
    chat_line,
    completion_line,
    config_of,
    good_lines,
    ports_of,
    read_lines_of,
    restarted,
    run,
)
from tests.unit.batch.scripted_client import ScriptedClient, words_of

from plait.api.answers import Usage
from plait.api.bodies import JsonObject, JsonValue, write_line
from plait.batch.config import BatchConfig
from plait.batch.ledger import JobTerms, Ledger
from plait.batch.lines import read_lines
from plait.batch.progress import BatchProgress
from plait.batch.runner import JOB_NAME, run_batch
from plait.batch.serving import TRIES
from plait.batch.source import open_source
from plait.core.client import Delta
from plait.core.errors import EngineStopped, InvariantError, PlaitError, UsageError
from plait.core.ids import RequestId
from plait.core.request import FinishReason, Request
from plait.engine.client import AsyncClient
from plait.engine.inbox import Abort, Arrive, Inbox, Message


def answer_of(line: JsonObject) -> JsonValue:
    """The text of the first choice of an output line."""
    match line:
        case {"response": {"status_code": 200, "body": {"choices": [{"message": {"content": str(text)}}, *_]}}}:
            return text
        case {"response": {"status_code": 200, "body": {"choices": [{"text": str(text)}, *_]}}}:
            return text
    return None


def answers_in(path: Path) -> list[tuple[JsonValue, JsonValue]]:
    return [(line["custom_id"], answer_of(line)) for line in read_lines_of(path)]


def status_of(line: JsonObject) -> tuple[JsonValue, JsonValue]:
    """Status and code of an output line: of the response, or of the line that was never run."""
    match line:
        case {"response": {"status_code": status, "body": {"error": {"code": code}}}, "error": None}:
            return status, code
        case {"response": {"status_code": status}, "error": None}:
            return status, None
        case {"response": None, "error": {"code": code}}:
            return None, code
    raise AssertionError(line)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def finished_in(config: BatchConfig) -> frozenset[int]:
    with open_source(config.input) as source, closing(Ledger.open(config.ledger)) as ledger:
        terms = JobTerms(source.sha256, MODEL.name, MODEL.weights, MODEL.fingerprint, 0)
        return ledger.finished(ledger.begin_job(JOB_NAME, terms))


def test_every_line_is_answered_in_the_order_of_the_input(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(5))
    summary = run(config)
    assert answers_in(config.output) == [(f"id-{number}", f"{number:04}") for number in range(1, 6)]
    assert (summary.lines_total, summary.lines_completed, summary.lines_failed) == (5, 5, 0)
    assert summary.run_usage == summary.job_usage == Usage(55, 10, 25)
    assert summary.exit_code == 0
    assert names_in(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.ledger"]


def test_both_endpoints_several_prompts_and_several_choices_work_in_one_file(tmp_path: Path) -> None:
    lines = [chat_line("chat", "abcd"), completion_line("list", ["wxyz", "lmno"], n=2)]
    config = config_of(tmp_path, lines)
    run(config)
    body = json.loads(config.output.read_text().splitlines()[1])["response"]["body"]
    assert [choice["text"] for choice in body["choices"]] == ["WXYZ", "WXYZ", "LMNO", "LMNO"]
    assert body["usage"]["completion_tokens"] == 20


def test_faulty_lines_become_error_lines_and_the_rest_goes_on(tmp_path: Path) -> None:
    lines: list[JsonObject | str] = [
        chat_line("good", "0001"),
        chat_line("stream", "x", stream=True),
        {**chat_line("url", "x"), "url": "/v1/nope"},
        {**chat_line("method", "x"), "method": "GET"},
        chat_line("model", "x", model="gpt"),
        "{",
        chat_line("good", "x"),
        chat_line("field", "x", temperature=9),
        chat_line("long", "x" * 640),
        chat_line("refused by the engine", "refuse"),
        chat_line("failed in the engine", "fail"),
        {"custom_id": None},
        chat_line("last", "0002"),
    ]
    config = config_of(tmp_path, lines)
    summary = run(config)
    assert [(line["custom_id"], *status_of(line)) for line in read_lines_of(config.output)] == [
        ("good", 200, None),
        ("stream", 400, "unsupported_parameter"),
        ("url", None, "invalid_url"),
        ("method", None, "invalid_method"),
        ("model", 404, "model_not_found"),
        (None, None, "invalid_json_line"),
        ("good", None, "duplicate_custom_id"),
        ("field", 400, None),
        ("long", 400, "context_length_exceeded"),
        ("refused by the engine", 400, "context_length_exceeded"),
        ("failed in the engine", 500, "engine_failure"),
        (None, None, "missing_custom_id"),
        ("last", 200, None),
    ]
    assert (summary.lines_total, summary.lines_completed, summary.lines_failed) == (13, 2, 11)
    assert summary.exit_code == 0


def test_an_empty_file_gives_an_empty_file(tmp_path: Path) -> None:
    config = config_of(tmp_path, ["", "   "])
    summary = run(config)
    assert config.output.read_bytes() == b""
    assert summary.text() == f"nothing to do: the input holds no lines, so {config.output} is empty"
    assert (summary.lines_total, summary.exit_code) == (0, 0)


def test_a_finished_job_runs_nothing_again(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))
    run(config)
    before = config.output.read_bytes()
    client = ScriptedClient()
    summary = run(config, client)
    assert client.submitted == []
    assert summary.is_nothing_to_do
    assert summary.lines_resumed == 3
    assert summary.run_usage == Usage()
    assert summary.job_usage == Usage(33, 6, 15)
    assert config.output.read_bytes() == before


@pytest.mark.parametrize("damage", ["lost", "emptied", "one byte"])
def test_a_lost_or_changed_output_is_written_again_from_the_ledger(tmp_path: Path, damage: str) -> None:
    config = config_of(tmp_path, good_lines(3))
    assert not run(config).is_rewritten
    before = config.output.read_bytes()
    config.output.unlink()
    if damage != "lost":
        config.output.write_bytes(b"" if damage == "emptied" else before.replace(b"0002", b"0009", 1))
    client = ScriptedClient()
    summary = run(config, client)
    assert client.submitted == []
    assert config.output.read_bytes() == before
    assert summary.is_rewritten
    assert summary.text().endswith("was missing or changed and was written again from the ledger")
    assert run(config).text().startswith("nothing to do: all 3 lines are in ")


def test_other_weights_under_the_same_name_are_refused_until_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))
    run(config)
    other = replace(MODEL, weights="5eed")
    with pytest.raises(UsageError, match="other weights that are called 'byte-model' too"):
        run(config, ScriptedClient(model_info=other))
    assert run(restarted(config), ScriptedClient(model_info=other)).lines_completed == 3


def test_another_seed_for_a_finished_job_is_warned_about(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))
    run(config)
    text = run(replace(config, seed=7)).text().splitlines()
    assert text[0].startswith("nothing to do")
    assert text[1].startswith("warning    the job was begun with seed 0, now it is 7")


def test_an_output_whose_name_is_no_utf8_is_written_and_named(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, good_lines(1)), output=Path(os.fsdecode(bytes(tmp_path) + b"/\xff.jsonl")))
    summary = run(config)
    assert len(read_lines_of(config.output)) == 1
    assert summary.output == f"{tmp_path}/\\xff.jsonl"
    assert write_line(summary.json_object())
    assert summary.text().encode()


def test_output_and_ledger_may_be_renamed_together(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))
    run(config)
    moved = replace(config, output=tmp_path / "other.jsonl")
    config.output.rename(moved.output)
    config.ledger.rename(moved.ledger)
    assert run(moved).is_nothing_to_do


def test_the_same_input_gives_the_same_bytes_in_every_run(tmp_path: Path) -> None:
    lines = [chat_line(f"id-{number}", f"{number:04}", temperature=1) for number in range(9)]
    config = config_of(tmp_path, lines)
    run(config)
    before = config.output.read_bytes()
    assert b'"seed":' in before
    run(replace(restarted(config), max_in_flight=1))
    assert config.output.read_bytes() == before


def test_another_input_for_a_begun_job_is_refused_until_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))
    run(config)
    config_of(tmp_path, good_lines(4))
    with pytest.raises(UsageError, match="belongs to another input"):
        run(config)
    assert run(restarted(config)).lines_completed == 4


def test_other_numerics_are_warned_about(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))
    run(config)
    summary = run(config, ScriptedClient(model_info=replace(MODEL, fingerprint="fp-2")))
    assert "fp-1" in summary.warnings[0]
    assert summary.exit_code == 0


def test_at_most_so_many_lines_are_in_flight(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, good_lines(40)), max_in_flight=3)
    held: list[asyncio.Future[None]] = []

    def hold_until_three_are_open(request: Request) -> asyncio.Future[None] | None:
        if client.most_open == 3:
            for future in held:
                if not future.done():
                    future.set_result(None)
            return None
        held.append(asyncio.get_running_loop().create_future())
        return held[-1]

    client = ScriptedClient(pause=hold_until_three_are_open)
    run(config, client)
    assert client.most_open == 3
    assert [words_of(request) for request in client.submitted] == [f"say {number:04}" for number in range(1, 41)]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stopped", "the engine stopped on a fault of its own"),
        ("closing", "the engine takes no more work: the engine is closing"),
        ("busy", "the engine takes no more work: the queue is full"),
    ],
)
def test_an_engine_that_stops_ends_the_job_and_no_line_is_blamed(tmp_path: Path, word: str, reason: str) -> None:
    lines = [*good_lines(2), chat_line("bad", word), chat_line("after", "0003")]
    config = replace(config_of(tmp_path, lines), max_in_flight=1)
    with pytest.raises(EngineStopped, match=reason):
        run(config)
    assert not config.output.exists()
    assert finished_in(config) == {1, 2}
    assert [line["custom_id"] for line in read_lines_of(config.partial)] == ["id-1", "id-2"]


@pytest.mark.parametrize("word", ["once", "unread"])
def test_a_line_that_an_engine_gives_up_and_goes_on_is_run_again(tmp_path: Path, word: str) -> None:
    lines = [chat_line("given up", f"{word} 0001"), chat_line("after", "0002")]
    client = ScriptedClient()
    summary = run(replace(config_of(tmp_path, lines), max_in_flight=1), client)
    assert answers_in(tmp_path / "out.jsonl") == [("given up", "0001"), ("after", "0002")]
    assert [words_of(request)[-4:] for request in client.submitted] == ["0001", "0001", "0002"]
    assert client.submitted[0] == client.submitted[1]
    assert summary.run_usage.output_tokens == 10


class Flooding(Inbox):
    """An engine that says more than anybody could have read, the first time it is asked; an abort takes a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.client = AsyncClient(MODEL, self, max_unread=3)
        self.asked: list[RequestId] = []
        self._ending: set[RequestId] = set()

    def put(self, message: Message) -> None:
        match message:
            case Arrive(request):
                self.asked.append(request.id)
                for letter in "ABCDEFGH" if self.asked.count(request.id) == 1 else "ok":
                    self._say(request.id, Delta(0, letter, tuple(letter.encode())))
                if self.asked.count(request.id) > 1:
                    self._say(request.id, Delta(0, "", (END,), finish_reason=FinishReason.STOP))
            case Abort(request_id) if request_id not in self._ending:
                self._ending.add(request_id)
                ended = Delta(0, "", (), finish_reason=FinishReason.ABORT)
                asyncio.get_running_loop().call_later(0.02, self._say, request_id, ended)

    def _say(self, request: RequestId, delta: Delta) -> None:
        self.client.put(request, delta)
        self.client.flush()


def test_a_line_whose_answer_came_too_fast_is_run_again_once_its_request_has_ended(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, [chat_line("fast", "0001")]), max_in_flight=1)
    engine = Flooding()
    told: list[BatchProgress] = []
    run_batch(config, replace(ports_of(engine.client), progress=told.append))
    assert answers_in(config.output) == [("fast", "ok")]
    assert len(engine.asked) == 2
    # What came of the first try is no more than what the second one said again.
    assert told[-1].output_tokens <= 4


def test_a_line_that_is_given_up_again_and_again_hurts_itself_alone(tmp_path: Path) -> None:
    lines = [chat_line("bad", "abort"), chat_line("after", "0002")]
    client = ScriptedClient()
    summary = run(replace(config_of(tmp_path, lines), max_in_flight=1), client)
    assert len(client.submitted) == TRIES + 1
    assert (summary.lines_completed, summary.lines_failed) == (1, 1)
    bad, _ = read_lines_of(tmp_path / "out.jsonl")
    assert status_of(bad) == (500, "engine_failure")


def test_the_next_run_serves_what_the_stopped_one_left(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, good_lines(6)), max_in_flight=1)

    def stop_at_the_fourth(request: Request) -> None:
        if words_of(request) == "say 0004":
            raise EngineStopped("power cut")

    with pytest.raises(EngineStopped):
        run(config, ScriptedClient(on_submit=stop_at_the_fourth))
    client = ScriptedClient()
    summary = run(config, client)
    assert [words_of(request) for request in client.submitted] == ["say 0004", "say 0005", "say 0006"]
    assert (summary.lines_completed, summary.lines_resumed) == (6, 3)
    assert summary.run_usage == Usage(33, 6, 15)
    assert summary.job_usage == Usage(66, 12, 30)
    assert answers_in(config.output) == [(f"id-{number}", f"{number:04}") for number in range(1, 7)]


def test_a_broken_promise_of_ours_is_loud_and_what_was_finished_stays(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, good_lines(3)), max_in_flight=1)

    def break_at_the_third(request: Request) -> None:
        if words_of(request) == "say 0003":
            raise InvariantError("block 7 freed twice")

    with pytest.raises(InvariantError, match="block 7 freed twice"):
        run(config, ScriptedClient(on_submit=break_at_the_third))
    assert finished_in(config) == {1, 2}


def test_when_one_line_ends_the_job_the_others_are_aborted(tmp_path: Path) -> None:
    config = config_of(tmp_path, [chat_line("slow", "slow"), chat_line("bad", "stopped")])
    never: list[asyncio.Future[None]] = []

    def wait_for_ever(request: Request) -> asyncio.Future[None] | None:
        if "slow" not in words_of(request):
            return None
        never.append(asyncio.get_running_loop().create_future())
        return never[-1]

    client = ScriptedClient(pause=wait_for_ever)
    with pytest.raises(EngineStopped):
        run(config, client)
    assert client.num_open == 0
    assert client.submitted[0].id in client.aborted


def test_one_refused_prompt_of_several_refuses_its_line_and_frees_the_others(tmp_path: Path) -> None:
    config = config_of(tmp_path, [completion_line("a", ["wxyz", "refuse"]), chat_line("b", "0001")])
    client = ScriptedClient()
    run(config, client)
    assert [status_of(line)[0] for line in read_lines_of(config.output)] == [400, 200]
    assert client.num_open == 0


def test_an_unwritable_place_is_one_clear_line(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, good_lines(1)), output=Path("/proc/out.jsonl"))
    with pytest.raises(PlaitError, match="cannot be created or opened"):
        run(config)


def test_a_missing_input_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        run(config_of(tmp_path))


def test_a_full_disk_ends_the_job_and_the_next_run_goes_on(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(5))
    config.partial.symlink_to("/dev/full")
    with pytest.raises(PlaitError, match="No space left on device"):
        run(restarted(config))
    finished = finished_in(config)
    assert finished
    config.partial.unlink()
    client = ScriptedClient()
    run(config, client)
    assert len(client.submitted) == 5 - len(finished)
    assert len(answers_in(config.output)) == 5


def test_a_job_that_stopped_before_publishing_only_publishes(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))
    config.unpublished.mkdir()
    with pytest.raises(PlaitError, match="could not be written: Is a directory"):
        run(restarted(config))
    assert not config.output.exists()
    config.unpublished.rmdir()
    client = ScriptedClient()
    run(config, client)
    assert client.submitted == []
    assert len(answers_in(config.output)) == 3


def test_an_input_that_changes_under_way_is_not_published(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))

    def append(request: Request) -> None:
        with Path(config.input).open("a") as file:
            file.write("\n")

    with pytest.raises(PlaitError, match="changed while it was being read"):
        run(config, ScriptedClient(on_submit=append))
    assert not config.output.exists()


def test_strict_refuses_a_faulty_file_before_any_work_with_reasons(tmp_path: Path) -> None:
    faulty = [chat_line(f"n-{number}", "x", n=0) for number in range(6)]
    config = replace(config_of(tmp_path, [*good_lines(2), "{", *faulty]), strict=True)
    client = ScriptedClient()
    with pytest.raises(UsageError) as caught:
        run(config, client)
    message = str(caught.value)
    assert message.startswith("7 of 9 lines cannot be served, so nothing was run: line 3: not valid JSON")
    assert "line 4: n is 0" in message
    assert "; ... (" in message
    assert client.submitted == []
    assert names_in(tmp_path) == ["in.jsonl"]


def test_strict_counts_lines_that_fail_later_as_a_failure_of_the_job(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, [*good_lines(2), chat_line("bad", "refuse")]), strict=True)
    summary = run(config)
    assert (summary.lines_failed, summary.exit_code) == (1, 1)


def test_progress_is_told_at_the_beginning_and_at_the_end(tmp_path: Path) -> None:
    reports: list[BatchProgress] = []
    config = config_of(tmp_path, [*good_lines(3), "{"])
    run_batch(config, ports_of(ScriptedClient(), progress=reports.append))
    assert (reports[0].lines_left, reports[0].lines_total) == (4, 4)
    assert (reports[-1].lines_done, reports[-1].lines_failed, reports[-1].lines_left) == (3, 1, 0)
    assert reports[-1].output_tokens == 15


def test_the_empty_prompt_depends_on_the_model(tmp_path: Path) -> None:
    config = config_of(tmp_path, [completion_line("a", "")])
    run_batch(config, ports_of(ScriptedClient(), adds_begin=True))
    assert status_of(read_lines_of(config.output)[0]) == (200, None)
    run_batch(restarted(config), ports_of(ScriptedClient()))
    assert status_of(read_lines_of(config.output)[0]) == (400, None)


def test_a_huge_input_is_read_as_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(config_of(tmp_path, good_lines(500)), max_in_flight=4)
    num_read = 0
    ahead = 0
    client = ScriptedClient()

    def counted(lines: Iterator[object]) -> Iterator[object]:
        nonlocal num_read, ahead
        for line in lines:
            num_read += 1
            ahead = max(ahead, num_read - (len(client.submitted) - client.num_open))
            yield line

    monkeypatch.setattr("plait.batch.serving_job.read_lines", lambda source: counted(read_lines(source)))
    run(config, client)
    assert num_read == 500
    assert ahead <= 5
