"""The envelope of a line: what makes it a request, and every way in which it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.batch.jobs import chat_line, completion_line, write_input

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Endpoint
from plait.batch.lines import BatchLine, LineFault, parse_line, read_lines
from plait.batch.source import RawLine, open_source


def parse(line: JsonValue | bytes) -> BatchLine | LineFault:
    return parse_line(RawLine(7, line if isinstance(line, bytes) else json.dumps(line).encode()))


def fault_of(line: JsonValue | bytes) -> LineFault:
    fault = parse(line)
    assert isinstance(fault, LineFault)
    assert fault.number == 7
    assert "\n" not in fault.message
    return fault


def read(folder: Path, lines: list[JsonObject | str]) -> list[BatchLine | LineFault]:
    with open_source(str(write_input(folder / "in.jsonl", lines))) as source:
        return list(read_lines(source))


def test_a_request_of_either_kind_is_read() -> None:
    chat = chat_line("a", "hi")
    assert parse(chat) == BatchLine(7, "a", Endpoint.CHAT, chat["body"])  # type: ignore[arg-type]
    line = parse(completion_line("b", "hi"))
    assert isinstance(line, BatchLine)
    assert line.url is Endpoint.COMPLETIONS


def test_unknown_keys_beside_the_known_ones_are_ignored() -> None:
    assert isinstance(parse({**chat_line("a", "hi"), "priority": 3}), BatchLine)


@pytest.mark.parametrize(
    "raw",
    [b"{", b"[]", b'"x"', b"null", b"1", b"not json", b'{"custom_id": "\xff"}', b"\x00", '{"a": 1}'.encode("utf-16")],
)
def test_what_is_no_json_object_is_an_invalid_line(raw: bytes) -> None:
    assert fault_of(raw).code == "invalid_json_line"


def test_a_line_that_is_too_long_is_a_fault() -> None:
    fault = parse_line(RawLine(7, None))
    assert isinstance(fault, LineFault)
    assert (fault.code, fault.message) == ("line_too_long", "the line is longer than 32 MiB; split the request")


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": None}, "missing_custom_id", "custom_id"),
        ({"custom_id": 5}, "invalid_custom_id", "custom_id"),
        ({"custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"method": None}, "invalid_method", "method"),
        ({"url": "/v1/nope"}, "invalid_url", "url"),
        ({"url": "/v1/moderations"}, "invalid_url", "url"),
        ({"url": None}, "invalid_url", "url"),
        ({"url": ["/v1/completions"]}, "invalid_url", "url"),
        ({"body": None}, "invalid_body", "body"),
        ({"body": []}, "invalid_body", "body"),
        ({"body": "hi"}, "invalid_body", "body"),
    ],
)
def test_each_fault_of_an_envelope_has_its_code(change: JsonObject, code: str, param: str) -> None:
    fault = fault_of({**chat_line("a", "hi"), **change})
    assert (fault.code, fault.param) == (code, param)
    assert fault.custom_id == (None if param == "custom_id" else "a")


def test_missing_keys_are_the_same_faults() -> None:
    line = chat_line("a", "hi")
    for key, code in {"custom_id": "missing_custom_id", "method": "invalid_method", "url": "invalid_url"}.items():
        assert fault_of({name: value for name, value in line.items() if name != key}).code == code


def test_the_second_use_of_a_custom_id_is_a_fault_that_names_the_first(tmp_path: Path) -> None:
    lines = read(tmp_path, [chat_line("a", "1"), "", chat_line("a", "2"), chat_line("b", "3"), chat_line("a", "4")])
    assert [type(line) for line in lines] == [BatchLine, LineFault, BatchLine, LineFault]
    second = lines[1]
    assert isinstance(second, LineFault)
    assert (second.number, second.custom_id, second.code) == (3, "a", "duplicate_custom_id")
    assert second.message == "custom_id 'a' is already used on line 1; give each line its own"


def test_a_faulty_line_keeps_its_own_fault_and_its_custom_id_is_taken(tmp_path: Path) -> None:
    wrong = {**chat_line("a", "1"), "method": "GET"}
    lines = read(tmp_path, [wrong, wrong, chat_line("a", "2")])
    assert [line.code for line in lines if isinstance(line, LineFault)] == [
        "invalid_method",
        "invalid_method",
        "duplicate_custom_id",
    ]


def test_faults_of_lines_without_an_id_never_collide(tmp_path: Path) -> None:
    assert len(read(tmp_path, ["{", "{", chat_line(None, "x"), chat_line(None, "x")])) == 4


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_one_fault(raw: bytes) -> None:
    line = parse(raw)
    assert isinstance(line, BatchLine) or "\n" not in line.message
