"""Literals in text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plait.text.literals import Literals

LITERALS = Literals({"<a>": 1, "<a>b": 2, "ab": 3, "": 4, "a.c": 5})
TEXTS = st.text("<>abc.", max_size=30)


def test_the_longest_literal_wins_where_two_begin() -> None:
    assert LITERALS.split("x<a>b<a>c") == ["x", "<a>b", "", "<a>", "c"]


def test_the_leftmost_literal_wins_where_two_overlap() -> None:
    assert LITERALS.split("<a>ba") == ["", "<a>b", "a"]
    assert LITERALS.split("ab<a>") == ["", "ab", "", "<a>", ""]


def test_literals_are_not_patterns() -> None:
    assert LITERALS.split("abc") == ["", "ab", "c"]
    assert LITERALS.split("axc") == ["axc"]


def test_an_empty_spelling_is_no_literal() -> None:
    assert LITERALS.split("") == [""]
    assert "" not in LITERALS.ids


def test_without_literals_text_stays_whole() -> None:
    none = Literals({})
    assert none.split("<a>") == ["<a>"]
    assert not none.found_in("<a>")
    assert not none.begun_by("<a")
    assert not none.completed_by("a>")


@given(TEXTS)
def test_a_split_joined_is_the_text_and_its_plain_parts_hold_no_literal(text: str) -> None:
    parts = LITERALS.split(text)
    assert "".join(parts) == text
    assert all(part in LITERALS.ids for part in parts[1::2])
    assert not any(LITERALS.found_in(part) for part in parts[::2])
    assert LITERALS.found_in(text) == (len(parts) > 1)


@given(TEXTS)
def test_begun_and_completed_agree_with_trying_every_literal(text: str) -> None:
    heads = [literal[:cut] for literal in LITERALS.ids for cut in range(1, len(literal))]
    tails = [literal[cut:] for literal in LITERALS.ids for cut in range(1, len(literal))]
    assert LITERALS.begun_by(text) == any(text.endswith(head) for head in heads)
    assert LITERALS.completed_by(text) == any(text.startswith(tail) for tail in tails)
