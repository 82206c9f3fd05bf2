"""The n-gram drafter goes on as the text did before, within bounds."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.draft import ngram
from plait.draft.drafter import NO_GUESS
from plait.draft.ngram import MOST_AT_ONCE, MOST_TOKENS, NgramDrafter, NgramDrafts
from plait.draft.suffixes import SuffixAutomaton


def test_it_goes_on_as_the_text_did_behind_the_same_words() -> None:
    guess = NgramDrafter().guess([5, 6, 7, 8, 9, 5, 6, 7], 2)
    assert guess.tokens == (8, 9)
    assert guess.levels[0] < guess.levels[1]


def test_what_repeats_goes_on_repeating() -> None:
    assert NgramDrafter().guess([9, 1, 2, 1, 2], 5).tokens == (1, 2, 1, 2, 1)


def test_words_that_are_new_have_no_guess() -> None:
    assert NgramDrafter().guess([1, 2, 3, 4], 5) == NO_GUESS


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=80), st.integers(1, 20), st.integers(0, 2**16))
def test_guesses_depend_on_the_tokens_alone(text: list[int], most: int, seed: int) -> None:
    """Not on how they came in."""
    dice = random.Random(seed)
    at_once, bit_by_bit = NgramDrafter(), NgramDrafter()
    for end in sorted(dice.sample(range(1, len(text) + 1), dice.randint(0, len(text)))):
        bit_by_bit.guess(text[:end], dice.randint(1, 20))
    guess = at_once.guess(text, most)
    assert bit_by_bit.guess(text, most) == guess
    assert len(guess.tokens) == len(guess.levels) in (0, most)


def test_a_long_prompt_is_taken_up_over_several_calls() -> None:
    drafter, text = NgramDrafter(), [*range(MOST_AT_ONCE), 0, 1, 2]
    assert drafter.guess(text, 3) == NO_GUESS
    assert drafter.guess(text, 3).tokens == (3, 4, 5)


def test_memory_is_bounded_and_the_newest_tokens_stay() -> None:
    dice = random.Random(3)
    text = [dice.randrange(50_000) for _ in range(2 * MOST_TOKENS)]
    drafter = NgramDrafter()
    tracemalloc.start()
    for end in range(0, len(text), 64):
        drafter.guess(text[:end], 1)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 500 * MOST_TOKENS
    repeated = [*text, *text[-100:-90]]
    assert drafter.guess(repeated, 3).tokens == tuple(text[-90:-87])


@pytest.mark.parametrize("tokens_a_call", [8, 300, 3 * MOST_TOKENS])
def test_no_call_adds_more_than_it_may_however_the_window_moves_on(
    monkeypatch: pytest.MonkeyPatch, tokens_a_call: int
) -> None:
    num_added = 0

    class Counted(SuffixAutomaton):
        __slots__ = ()

        def add(self, token: int) -> None:
            nonlocal num_added
            num_added += 1
            super().add(token)

    monkeypatch.setattr(ngram, "SuffixAutomaton", Counted)
    dice, drafter, added = random.Random(5), NgramDrafter(), []
    text = [dice.randrange(500) for _ in range(3 * MOST_TOKENS)]
    calls = [*range(tokens_a_call, len(text), tokens_a_call), *[len(text)] * (4 * MOST_TOKENS // MOST_AT_ONCE)]
    for end in calls:
        num_added = 0
        drafter.guess(text[:end], 1)
        added.append(num_added)
    assert max(added) <= min(MOST_AT_ONCE, 2 * tokens_a_call)
    assert added[-1] == 0
    assert drafter.guess([*text, *text[-4000:-3990]], 3).tokens == tuple(text[-3990:-3987])


def test_the_window_moves_on_to_its_newer_half_as_if_it_had_begun_there() -> None:
    dice = random.Random(6)
    text = [dice.randrange(30) for _ in range(MOST_TOKENS + 700)]
    moved, begun = NgramDrafter(), NgramDrafter()
    for end in range(0, MOST_TOKENS, 200):
        moved.guess(text[:end], 1)
    for end in range(MOST_TOKENS, len(text), 50):
        for _ in range(MOST_TOKENS // MOST_AT_ONCE):
            begun.guess(text[MOST_TOKENS // 2 : end], 1)
        assert moved.guess(text[:end], 6) == begun.guess(text[MOST_TOKENS // 2 : end], 6) != NO_GUESS


def test_every_level_has_a_first_rate() -> None:
    assert len(NgramDrafts().first_rates) == len(ngram._LENGTHS)
