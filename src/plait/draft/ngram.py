"""N-gram drafter: what stood behind the same words earlier in prompt and output will stand there again.

Owns the bounded window of a sequence in which it looks, and the levels of its guesses: the length of the ending that
was found again. "Prompt lookup" as Saxena, "Prompt Lookup Decoding", 2023, has it, over the longest ending of all.
Invariant: memory and the time of a call are bounded, whatever the text; nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.draft.drafter import NO_GUESS, Drafter, Guess
from plait.draft.suffixes import SuffixAutomaton

MOST_TOKENS = 8192
"""In the window. An automaton takes 50 to 150 bytes each; behind the first half of the window a second one grows: up to
about 220 bytes each then, 1.7 MiB a sequence.
"""

MOST_AT_ONCE = 512
"""Tokens that one call adds to automata at most, about two milliseconds: a long prompt is read over several steps."""

_LENGTHS = (1, 2, 3, 4, 6, 9, 16, 32)
"""The shortest ending of each level."""

FIRST_RATES = (0.15, 0.3, 0.45, 0.55, 0.65, 0.75, 0.8, 0.85)

_LONGEST = _LENGTHS[-1]
_LEVELS = tuple(sum(shortest <= length for shortest in _LENGTHS) - 1 for length in range(_LONGEST + 1))
"""By length of the ending; longer ones are like the last. Length 0 has none."""


def level_of(length: int) -> int:
    """Of a guess behind an ending of so many tokens, at least one."""
    return _LEVELS[min(length, _LONGEST)]


class NgramDrafter:
    """A `Drafter`."""

    __slots__ = ("_automaton", "_next", "_num_taken", "_window")

    def __init__(self) -> None:
        self._num_taken = 0
        """Of the sequence's tokens, how many were taken up."""
        self._begin()

    def _begin(self) -> None:
        self._window: list[int] = []
        self._automaton = SuffixAutomaton()
        self._next: SuffixAutomaton | None = None
        """Of the second half of the window: nothing can be taken out of an automaton, so this one is there when the
        window is full. Made at once, half a window would hold up everybody's step.
        """

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        self._take_up(tokens)
        automaton, window = self._automaton, self._window
        if self._num_taken < len(tokens) or not automaton.match_length:
            return NO_GUESS
        first, length = automaton.match_end + 1, automaton.match_length
        guessed = window[first : first + most]
        period = len(window) - first
        while len(guessed) < most:
            # The two occurrences overlap or touch: what repeats goes on repeating.
            guessed.append(guessed[-period])
        return Guess(tuple(guessed), tuple([level_of(length + i) for i in range(most)]))

    def _take_up(self, tokens: Sequence[int]) -> None:
        if len(tokens) - self._num_taken > MOST_TOKENS:
            self._num_taken = len(tokens) - MOST_TOKENS
            self._begin()
        left = MOST_AT_ONCE
        while self._num_taken < len(tokens):
            left -= 1 if self._next is None else 2
            if left < 0:
                return
            self._add(tokens[self._num_taken])
            self._num_taken += 1

    def _add(self, token: int) -> None:
        self._window.append(token)
        self._automaton.add(token)
        if self._next is not None:
            self._next.add(token)
        if len(self._window) == MOST_TOKENS and self._next is not None:
            self._automaton, self._next = self._next, None
            del self._window[: MOST_TOKENS // 2]
        if len(self._window) == MOST_TOKENS // 2:
            self._next = SuffixAutomaton()


class NgramDrafts:
    """A `DrafterSource`."""

    @property
    def first_rates(self) -> Sequence[float]:
        return FIRST_RATES

    def begin(self) -> Drafter:
        return NgramDrafter()
