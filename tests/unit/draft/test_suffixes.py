"""The suffix automaton says what looking through the whole text would say."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.draft.suffixes import SuffixAutomaton


def longest_repeated_ending(text: Sequence[int]) -> int:
    for length in range(len(text) - 1, 0, -1):
        if any(text[at : at + length] == text[-length:] for at in range(len(text) - length)):
            return length
    return 0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_behind_every_token_it_has_the_longest_ending_that_stood_there_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for place, token in enumerate(text):
        automaton.add(token)
        said = text[: place + 1]
        length, end = automaton.match_length, automaton.match_end
        assert length == longest_repeated_ending(said)
        if length:
            assert end < place
            assert said[end + 1 - length : end + 1] == said[-length:]


def test_it_stays_linear_on_the_texts_that_make_automata_large() -> None:
    dice = random.Random(1)
    size = 4000
    for text in ([0] * size, [0] + [1] * (size - 1), [dice.randrange(2) for _ in range(size)], [*range(size)]):
        automaton = SuffixAutomaton()
        for token in text:
            automaton.add(token)
        assert automaton.num_states <= 2 * size
        assert automaton.num_transitions <= 3 * size


def test_of_two_earlier_places_it_names_the_newer_one() -> None:
    automaton = SuffixAutomaton()
    for token in (1, 2, 7, 1, 2, 8, 1, 2):
        automaton.add(token)
    assert (automaton.match_length, automaton.match_end) == (2, 4)
