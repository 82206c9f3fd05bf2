"""JSON from strangers: what is read, what is refused, and that refusing costs little."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from plait.core.errors import ModelError
from plait.weights.json_text import MAX_DEPTH, MAX_VALUES, parse_json_table, read_json_file, read_small_file


def test_a_table_is_read_as_it_is(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "ü\n"], "b": {"c": {}}, "": -7, "big": 2**70}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(value))
    assert read_json_file(path) == value
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(value).encode())
    assert read_json_file(path) == value


def test_brackets_may_be_nested_to_a_limit() -> None:
    inside = MAX_DEPTH - 1
    assert parse_json_table(b'{"a":' + b"[" * inside + b"1" + b"]" * inside + b"}", "x")
    with pytest.raises(ModelError, match=r"^x: brackets are nested deeper than 64"):
        parse_json_table(b'{"a":' + b"[" * (inside + 1) + b"1" + b"]" * (inside + 1) + b"}", "x")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":[' + b"[]," * MAX_VALUES + b"0]}",
        b'{"a":' + b"[" * 5_000_000,
        b"{" + b'"a":0,' * MAX_VALUES + b"}",
        b'"' + b"," * 8_000_000 + b'"',
    ],
    ids=["lists", "depth", "keys", "text"],
)
def test_a_text_that_would_cost_much_is_refused_before_it_is_parsed(raw: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"^x: it holds about .* values; the limit is 2,000,000"):
        parse_json_table(raw, "x")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match=r"x.json: 1,099,511,627,776 bytes; the limit is 16,777,216"):
        read_json_file(path)
    path.write_bytes(b"1234")
    assert read_small_file(path, 4) == b"1234"


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone: cannot be read \(No such file or directory\); fetch"):
        read_json_file(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="pipe: not a regular file"):
        read_json_file(tmp_path / "pipe")


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"7", b'"text"', b"[]", b"{}x", b'{"a"}', b'{"a":1,}', b"{'a':1}", b"\xff"]
)
def test_what_is_no_table_is_one_line(raw: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        parse_json_table(raw, "x")
    assert str(caught.value).startswith("x: ")
    assert str(caught.value).endswith("; the file is damaged, fetch it again")
    assert "\n" not in str(caught.value)


def test_halves_of_characters_are_shown_without_harm() -> None:
    with pytest.raises(ModelError) as caught:
        parse_json_table(rb'{"\ud800": 1, "\ud800": 2}', "x")
    assert str(caught.value) == r"x: the key '\ud800' appears twice; the file is damaged, fetch it again"
