"""Lines in another order: the same lines, faulty ones last, answers the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.api.byte_text import MODEL, byte_text
from tests.unit.batch.jobs import chat_line, completion_line, config_of, good_lines, ports_of, write_input
from tests.unit.batch.scripted_client import ScriptedClient, words_of
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.api.bodies import JsonObject
from plait.api.calls import Call
from plait.batch.lines import BatchLine
from plait.batch.preparing import Preparer
from plait.batch.runner import run_batch
from plait.batch.source import Source, open_source
from plait.batch.survey import survey
from plait.core.errors import EngineStopped
from plait.core.request import Request
from plait.sched.blend.choosing import FEWEST, Choice, Choosing
from plait.sched.blend.feeds import JobOrder, Ordering
from plait.sched.blend.forecast import Machine

ORDERINGS = [Ordering(order, EvenLives(), 2000.0, seed=1) for order in JobOrder]


def lines() -> list[JsonObject | str]:
    return [
        chat_line("a", "tell me a tale of " + "b" * 10, max_tokens=30),
        "no json at all",
        completion_line("b", "tell me", max_tokens=1),
        "",
        chat_line("c", "refuse"),
        chat_line("a", "the same name again"),
        completion_line("d", ["two", "prompts"], max_tokens=3, ignore_eos=True),
        *(chat_line(f"e{number}", f"say {number % 3} {number}", max_tokens=4) for number in range(30)),
        chat_line("f", "ends without a newline"),
    ]


def outputs_of(folder: Path) -> list[JsonObject]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("ordering", ORDERINGS, ids=lambda one: one.order)
@pytest.mark.parametrize("max_in_flight", [1, 3, 200])
def test_the_output_does_not_depend_on_the_order(tmp_path: Path, ordering: Ordering, max_in_flight: int) -> None:
    found = []
    for name, chosen in (("given", None), ("ordered", ordering)):
        folder = tmp_path / name
        folder.mkdir()
        config = replace(config_of(folder, lines()), max_in_flight=max_in_flight)
        summary = run_batch(config, replace(ports_of(ScriptedClient()), ordering=chosen))
        found.append((outputs_of(folder), summary.lines_completed, summary.lines_failed))
    assert found[1] == found[0]
    assert found[0][1:] == (34, 3)


def test_lines_that_begin_alike_follow_each_other(tmp_path: Path) -> None:
    client = ScriptedClient()
    config = replace(config_of(tmp_path, lines()), max_in_flight=1)
    run_batch(config, replace(ports_of(client), ordering=Ordering(JobOrder.DFS, EvenLives(), 1e9)))
    asked = [words_of(request) for request in client.submitted]
    places = [place for place, words in enumerate(asked) if "say 1" in words]
    assert places == list(range(places[0], places[0] + 10))


def test_a_second_run_orders_what_is_left(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, lines()), max_in_flight=2)
    ports = ports_of(ScriptedClient(on_submit=stop_at(12)))
    with pytest.raises(EngineStopped, match="enough"):
        run_batch(config, replace(ports, ordering=ORDERINGS[-1]))
    again = ScriptedClient()
    summary = run_batch(config, replace(ports_of(again), ordering=ORDERINGS[-1]))
    assert summary.lines_completed == 34
    assert summary.lines_resumed >= 9
    given = tmp_path / "given"
    given.mkdir()
    run_batch(config_of(given, lines()), ports_of(ScriptedClient()))
    assert [one["custom_id"] for one in outputs_of(tmp_path)] == [one["custom_id"] for one in outputs_of(given)]


def test_a_choice_is_made_for_the_lines_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choosing = Choosing(ORDERINGS[-1], Machine(2000.0, 256, tells=False))
    config = replace(config_of(tmp_path, good_lines(100)), max_in_flight=2)
    choices: list[Choice] = []
    ports = replace(ports_of(ScriptedClient(on_submit=stop_at(90))), ordering=choosing, chose=choices.append)
    with pytest.raises(EngineStopped, match="enough"):
        run_batch(config, ports)
    prepared: list[int] = []
    prepare = Preparer.prepare

    def noting(preparer: Preparer, line: BatchLine) -> Call:
        prepared.append(line.number)
        return prepare(preparer, line)

    monkeypatch.setattr(Preparer, "prepare", noting)
    summary = run_batch(config, replace(ports, client=ScriptedClient()))
    left = 100 - summary.lines_resumed
    assert 0 < left < FEWEST
    assert (choices[0].num_requests, JobOrder.BLEND in choices[0].seconds) == (100, True)
    assert choices[1] == Choice(JobOrder.INPUT, left)
    # Encoded when they are served, and not before.
    assert len(prepared) == left


def stop_at(count: int) -> Callable[[Request], None]:
    left = iter(range(count))

    def on_submit(request: Request) -> None:
        if next(left, None) is None:
            raise EngineStopped("enough")

    return on_submit


def test_a_survey_knows_lengths_that_are_certain(tmp_path: Path) -> None:
    limits: JsonObject = {"max_tokens": 7, "n": 2}
    write_input(
        tmp_path / "in.jsonl",
        [
            chat_line("free", "x", **limits),
            chat_line("ignores", "x", ignore_eos=True, **limits),
            chat_line("stops", "x", ignore_eos=True, stop="y", **limits),
            chat_line("least", "x", min_tokens=7, **limits),
            chat_line("finished", "x"),
        ],
    )
    with open_source(str(tmp_path / "in.jsonl")) as source:
        preparer = Preparer(byte_text(), MODEL, (), source.sha256, 0)
        found = survey(source, preparer, frozenset({5}), lambda one: one.n * (one.sampling.max_tokens or 99))
    assert found.job.known == {1: 14, 3: 14}
    assert list(found.job.most) == [14] * 4
    assert list(found.numbers) == [1, 2, 3, 4]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_line_is_found_again(tmp_path: Path, mark: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(mark + b'{"a": 1}\r\n\n  \n{"b": 2}\n{"c": 3}')
    with open_source(str(path)) as source:
        assert list(again(source)) == [(1, b'{"a": 1}\r\n'), (4, b'{"b": 2}\n'), (5, b'{"c": 3}')]


def again(source: Source) -> Iterator[tuple[int, bytes | None]]:
    for line in list(source.lines()):
        found = source.line_at(line.number, line.offset)
        assert found == line
        yield found.number, found.raw
