"""Spelling, floors and offsets of tokens in log-probability lists."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.byte_text import END, byte_text

from plait.api.logprobs import CompletionOffsets, floored, spelled
from plait.core.step import TokenLogprob


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, math.inf, -1e30])
def test_what_json_cannot_write_becomes_the_floor(logprob: float) -> None:
    assert floored(logprob) == -9999.0


@pytest.mark.parametrize("logprob", [0.0, -0.5, -9998.5])
def test_ordinary_values_stay(logprob: float) -> None:
    assert floored(logprob) == logprob


def test_parts_of_characters_are_spelled_in_bytes_and_stay_different() -> None:
    assert spelled(b"abc") == "abc"
    assert spelled("日".encode()) == "日"
    assert spelled(b"\xe6\x97") == "bytes:\\xe6\\x97"
    assert spelled(b"\xe6\x98") == "bytes:\\xe6\\x98"


def offsets(tokens: list[int], answer: str, *, skip_special: bool = True) -> object:
    entries = [TokenLogprob(token, -1.0) for token in tokens]
    return CompletionOffsets(byte_text().tokenizer, skip_special).place(entries, answer)


def test_a_token_inside_a_character_begins_where_the_character_does() -> None:
    assert offsets(list("aü日b".encode()), "aü日b") == [0, 1, 1, 2, 2, 2, 3]


def test_bytes_that_are_no_text_count_as_the_characters_that_stand_for_them() -> None:
    assert offsets(list(b"\xffab"), "\ufffdab") == [0, 1, 2]
    assert offsets(list(b"\xff\xffa"), "\ufffd\ufffda") == [0, 1, 2]
    assert offsets(list(b"a\xe2\x82\xacb"), "a\u20acb") == [0, 1, 1, 1, 2]


def test_what_is_not_in_the_text_begins_where_the_text_ends() -> None:
    assert offsets([*b"ab", END], "ab") == [0, 1, 2]
    assert offsets([*b"ab STOP"], "ab") == [0, 1, 2, 2, 2, 2, 2]


def test_control_tokens_count_where_they_are_shown() -> None:
    assert offsets([END, 97], "a") == [0, 0]
    assert offsets([END, 97], "<|end|>a", skip_special=False) == [0, 7]


@given(st.text(max_size=30))
def test_the_offset_of_a_first_byte_is_the_place_of_its_character(text: str) -> None:
    expected = [place for place, letter in enumerate(text) for _ in letter.encode()]
    assert offsets(list(text.encode()), text) == expected


@given(st.binary(max_size=30))
def test_offsets_never_fall_and_never_leave_the_text(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    found = offsets(list(raw), text)
    assert isinstance(found, list)
    assert found == sorted(found)
    assert all(0 <= offset <= len(text) for offset in found)
