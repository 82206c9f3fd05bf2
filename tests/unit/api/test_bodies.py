"""JSON bytes to objects: whatever arrives is one object or one clear error."""

from __future__ import annotations

import math

import pytest

from plait.api.bodies import MAX_DEPTH, JsonObject, read_object, shown, write_line
from plait.core.errors import RequestError


def test_an_object_is_read() -> None:
    assert read_object('{"a": [1, null, "ü"]}'.encode()) == {"a": [1, None, "ü"]}


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b'"x"',
        b"null",
        b"1",
        b"{",
        b"",
        b"   ",
        '{"a": 1}'.encode("utf-16"),
        b'{"a": "\xff"}',
        b"[" * 200_000,
        b'{"a": NaN}',
        b'{"a": 1e400}',
        b'{"a": "\\ud800"}',
    ],
)
def test_anything_else_is_refused_in_one_line(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read_object(raw)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 200


def test_an_object_is_no_deeper_than_what_can_be_told_back_of_it() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' * (levels - 1) + b"[]" + b"}" * (levels - 1)

    deepest = read_object(nested(MAX_DEPTH))
    assert write_line({"answer": [{"told": deepest}]})
    with pytest.raises(RequestError) as caught:
        read_object(nested(MAX_DEPTH + 1))
    assert (caught.value.status, caught.value.code) == (400, "too_deep")
    # Many values beside each other are not deep.
    assert read_object(b'{"a": [' + b"[1]," * 10_000 + b"[1]]}")


def test_a_written_object_is_one_line_and_keeps_letters() -> None:
    assert write_line({"text": "a\nü\u2028"}) == '{"text":"a\\nü\\u2028"}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (7, "7"),
        (1.5, "1.5 (a number)"),
        (True, "true (a boolean)"),
        ("8", '"8" (a string)'),
        ([1, "x"], '[1,"x"] (a list)'),
        ({"a": 1}, '{"a":1} (an object)'),
        (10**4000, "an integer of 13288 bits"),
    ],
)
def test_an_error_quotes_a_value_with_its_kind(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_long_value_is_cut_where_it_is_quoted() -> None:
    assert len(shown("x" * 100_000)) < 100
    assert len(shown(list(range(10_000)))) < 100


def test_a_value_that_is_not_json_is_named_by_its_kind_only() -> None:
    assert shown("\ud800") == "a string"
    assert shown({1: object()}) == "an object"
    assert shown(math.nan) == "null (a number)"


def test_a_line_is_one_for_every_reader_of_lines() -> None:
    value: JsonObject = {"text": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\r\né"}
    written = write_line(value)
    assert len(written.splitlines()) == 1
    assert "é" in written
    assert read_object(written.encode()) == value
