"""The n-gram window goes on as the text did before, within bounds."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from plait.draft import window
from plait.draft.suffixes import SuffixAutomaton
from plait.draft.window import MOST_AT_ONCE, MOST_TOKENS, NgramWindow


def test_what_repeats_goes_on_repeating() -> None:
    assert NgramWindow(64, 64).find([9, 1, 2, 1, 2], 5) == ((1, 2, 1, 2, 1), 2)


def test_memory_is_bounded_and_the_newest_tokens_stay() -> None:
    dice = random.Random(3)
    text = [dice.randrange(50_000) for _ in range(2 * MOST_TOKENS)]
    found = NgramWindow(MOST_TOKENS, MOST_AT_ONCE)
    tracemalloc.start()
    for end in range(0, len(text), 64):
        found.find(text[:end], 1)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 500 * MOST_TOKENS
    assert found.find([*text, *text[-100:-90]], 3) == (tuple(text[-90:-87]), 10)


@pytest.mark.parametrize("tokens_a_call", [8, 300, 3 * MOST_TOKENS])
def test_no_call_adds_more_than_it_may_however_the_window_moves_on(
    monkeypatch: pytest.MonkeyPatch, tokens_a_call: int
) -> None:
    num_added, most_at_once = 0, 512

    class Counted(SuffixAutomaton):
        __slots__ = ()

        def add(self, token: int) -> None:
            nonlocal num_added
            num_added += 1
            super().add(token)

    monkeypatch.setattr(window, "SuffixAutomaton", Counted)
    dice, found, added = random.Random(5), NgramWindow(MOST_TOKENS, most_at_once), []
    text = [dice.randrange(500) for _ in range(3 * MOST_TOKENS)]
    calls = [*range(tokens_a_call, len(text), tokens_a_call), *[len(text)] * (4 * MOST_TOKENS // most_at_once)]
    for end in calls:
        num_added = 0
        found.find(text[:end], 1)
        added.append(num_added)
    assert max(added) <= min(most_at_once, 2 * tokens_a_call)
    assert added[-1] == 0
    assert found.find([*text, *text[-4000:-3990]], 3) == (tuple(text[-3990:-3987]), 10)


def test_the_window_moves_on_to_its_newer_half_as_if_it_had_begun_there() -> None:
    dice = random.Random(6)
    text = [dice.randrange(30) for _ in range(MOST_TOKENS + 700)]
    moved, begun = NgramWindow(MOST_TOKENS, MOST_AT_ONCE), NgramWindow(MOST_TOKENS, 2 * MOST_TOKENS)
    for end in range(0, MOST_TOKENS, 200):
        moved.find(text[:end], 1)
    for end in range(MOST_TOKENS, len(text), 50):
        assert (found := moved.find(text[:end], 6)) == begun.find(text[MOST_TOKENS // 2 : end], 6)
        assert found is not None
