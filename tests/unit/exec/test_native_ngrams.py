"""The native n-gram window guesses what the one in Python does, token by token, and refuses what is no token."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.draft.window import MOST_AT_ONCE, MOST_TOKENS, NgramWindow

_native = pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")


def ends(dice: random.Random, size: int) -> list[int]:
    """Where calls end, some of which bring nothing and some much."""
    found, end = [], 0
    while end < size:
        end = min(size, end + dice.choice((0, 1, 1, 1, 2, 5, 17)))
        found.append(end)
    return found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=150),
    st.integers(1, 12).map(lambda half: 2 * half),
    st.integers(2, 40),
    st.integers(0, 2**16),
)
def test_it_guesses_what_the_window_in_python_does(
    text: list[int], most_tokens: int, most_at_once: int, seed: int
) -> None:
    dice = random.Random(seed)
    native, plain = _native.NgramWindow(most_tokens, most_at_once), NgramWindow(most_tokens, most_at_once)
    for end in ends(dice, len(text)):
        most = dice.choice((1, 2, 17))
        assert native.find(text[:end], most) == plain.find(text[:end], most)


@pytest.mark.parametrize("num_words", [2, 40, 50_000])
def test_so_do_windows_of_the_usual_size_as_they_move_on(num_words: int) -> None:
    dice = random.Random(num_words)
    text: list[int] = []
    while len(text) < 2 * MOST_TOKENS + 700:
        start = dice.randrange(len(text) + 1)
        text += text[start : start + 30] if dice.random() < 0.5 else [dice.randrange(num_words) for _ in range(30)]
    native, plain = _native.NgramWindow(MOST_TOKENS, MOST_AT_ONCE), NgramWindow(MOST_TOKENS, MOST_AT_ONCE)
    for end in range(1, len(text), 23):
        assert native.find(text[:end], 17) == plain.find(text[:end], 17)


def test_its_memory_is_bounded_by_the_window() -> None:
    dice = random.Random(4)
    text = [dice.randrange(50_000) for _ in range(3 * MOST_TOKENS)]
    window, most = _native.NgramWindow(MOST_TOKENS, MOST_AT_ONCE), 0
    for end in range(0, len(text), 64):
        window.find(text[:end], 1)
        most = max(most, window.num_bytes)
    assert 4 * MOST_TOKENS < most < 250 * MOST_TOKENS


def test_any_sequence_of_tokens_will_do() -> None:
    asked: list[Sequence[int]] = [[1, 2, 3, 1, 2], (1, 2, 3, 1, 2), range(5)]
    assert [_native.NgramWindow(8, 8).find(one, 2) for one in asked] == [((3, 1), 2), ((3, 1), 2), None]


@pytest.mark.parametrize("wrong", [-1, 2**31, 2**70, 1.5, None, "a"])
def test_what_is_no_token_is_refused_and_the_window_goes_on_without_it(wrong: object) -> None:
    window = _native.NgramWindow(8, 8)
    with pytest.raises((ValueError, TypeError), match="a token is"):
        window.find([1, 2, 1, wrong], 2)  # type: ignore[list-item]
    assert window.find([1, 2, 1, 2], 2) == ((1, 2), 2)


@pytest.mark.parametrize(("most_tokens", "most_at_once"), [(0, 8), (7, 8), (-2, 8), (8, 1), (2**40, 8)])
def test_a_window_that_cannot_be_is_refused(most_tokens: int, most_at_once: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        _native.NgramWindow(most_tokens, most_at_once)
