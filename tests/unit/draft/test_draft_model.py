"""What a draft model says of one sequence: a guess while it fits what came, and what need not be computed again."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.draft.draft_model import FIRST_RATES, ModelDrafter, ModelDrafts
from plait.draft.drafter import NO_GUESS, Guess


def drafter() -> ModelDrafter:
    made = ModelDrafts().begin()
    assert isinstance(made, ModelDrafter)
    return made


def in_a_round(one: ModelDrafter, tokens: list[int], said: list[int], chance: float = 0.5) -> int:
    """It reads `tokens` and says `said`; returns where it began to read."""
    start = one.begin(tokens)
    for place, token in enumerate(said):
        one.computed(len(tokens) + place)
        one.say(token, log(chance))
    return start


def test_it_guesses_what_was_said_and_behind_right_ones_what_is_left() -> None:
    one = drafter()
    assert one.guess([1, 2, 3], 4) == NO_GUESS
    assert in_a_round(one, [1, 2, 3], [4, 5, 6]) == 0
    assert one.guess([1, 2, 3], 2).tokens == (4, 5)
    assert one.guess([1, 2, 3], 9).tokens == (4, 5, 6)
    assert one.guess([1, 2, 3, 4], 9).tokens == (5, 6)
    assert one.guess([1, 2, 3, 4, 7], 9) == NO_GUESS


def test_it_reads_what_it_has_not_seen() -> None:
    one = drafter()
    in_a_round(one, [1, 2, 3], [4, 5, 6])
    # The last one that it said was never computed.
    assert in_a_round(one, [1, 2, 3, 4, 5, 6, 7], []) == 5
    one = drafter()
    in_a_round(one, [1, 2, 3], [4, 5, 6])
    assert in_a_round(one, [1, 2, 3, 4, 9, 8], []) == 4
    one.forget()
    assert in_a_round(one, [1, 2, 3, 4, 9, 8], []) == 0


@pytest.mark.parametrize(("chance", "level"), [(0.1, 0), (0.3, 1), (0.5, 2), (0.7, 3), (0.8, 4), (0.95, 5), (1.0, 6)])
def test_how_sure_it_was_is_the_level(chance: float, level: int) -> None:
    one = drafter()
    in_a_round(one, [1], [2], chance)
    assert one.guess([1], 1) == Guess((2,), (level,))
    assert len(FIRST_RATES) == 7


def test_how_often_it_is_right_is_learned_from_the_tokens_that_come() -> None:
    right, wrong = drafter(), drafter()
    for length in range(1, 40):
        tokens = list(range(length))
        in_a_round(right, tokens, [length])
        in_a_round(wrong, tokens, [77])
    assert right.rate > 0.9
    assert wrong.rate < 0.2


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
def test_what_it_keeps_are_the_sequences_own_tokens(tokens: list[int], data: st.DataObject) -> None:
    """Against the cache itself: what stands in it after every round."""
    one = drafter()
    cache: list[int] = []
    for _ in range(5):
        start = one.begin(tokens)
        assert start < len(tokens)
        assert cache[:start] == tokens[:start]
        said = data.draw(st.lists(st.integers(0, 2), max_size=5))
        cache = [*tokens, *said[:-1]] if said else cache[:start]
        for place, token in enumerate(said):
            one.computed(len(tokens) + place)
            one.say(token, 0.0)
        if not said:
            one.computed(start)
        assert one.guess(tokens, 9).tokens == tuple(said)
        tokens = tokens + data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
        left = one.guess(tokens, 9).tokens
        assert not left or [*tokens, *left][-len(said) :] == said[-len(said) :]
