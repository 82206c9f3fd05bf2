"""The n-gram drafter goes on as the text did before, and its levels follow the length of the ending."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.draft import ngram
from plait.draft.drafter import NO_GUESS
from plait.draft.ngram import NgramDrafts, level_of, levels_from
from plait.draft.window import MOST_AT_ONCE


def test_it_goes_on_as_the_text_did_behind_the_same_words() -> None:
    guess = NgramDrafts().begin().guess([5, 6, 7, 8, 9, 5, 6, 7], 2)
    assert guess.tokens == (8, 9)
    assert guess.levels[0] < guess.levels[1]


def test_words_that_are_new_have_no_guess() -> None:
    assert NgramDrafts().begin().guess([1, 2, 3, 4], 5) == NO_GUESS


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=80), st.integers(1, 20), st.integers(0, 2**16))
def test_guesses_depend_on_the_tokens_alone(text: list[int], most: int, seed: int) -> None:
    """Not on how they came in."""
    dice = random.Random(seed)
    at_once, bit_by_bit = NgramDrafts().begin(), NgramDrafts().begin()
    for end in sorted(dice.sample(range(1, len(text) + 1), dice.randint(0, len(text)))):
        bit_by_bit.guess(text[:end], dice.randint(1, 20))
    guess = at_once.guess(text, most)
    assert bit_by_bit.guess(text, most) == guess
    assert len(guess.tokens) == len(guess.levels) in (0, most)


def test_a_very_long_prompt_is_taken_up_over_several_calls() -> None:
    drafter, text = NgramDrafts().begin(), [*range(MOST_AT_ONCE), 0, 1, 2]
    assert drafter.guess(text, 3) == NO_GUESS
    assert drafter.guess(text, 3).tokens == (3, 4, 5)


@given(st.integers(1, 80), st.integers(1, 80))
def test_each_token_of_a_guess_lengthens_the_ending_for_the_next(length: int, count: int) -> None:
    assert levels_from(length, count) == tuple(level_of(length + place) for place in range(count))


def test_every_level_has_a_first_rate() -> None:
    assert len(NgramDrafts().first_rates) == len(ngram._LENGTHS)
