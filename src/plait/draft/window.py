"""N-gram window: the newest tokens of one sequence, and what stood behind its ending when that stood there before.

Owns the bounds: so many tokens, and so many additions a call. Knows not how sure a guess is. The native runtime has the
same window in `csrc/draft`, twenty times as fast; this one is for installations without it, and says what it must say.
Invariant: memory and the time of a call are bounded, whatever the text; nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plait.draft.suffixes import SuffixAutomaton

MOST_TOKENS = 8192
"""In the window."""

MOST_AT_ONCE = 4096
"""Tokens that one call adds to automata at most, so that a very long prompt is read over several steps."""


class Window(Protocol):
    """Of one sequence."""

    def find(self, tokens: Sequence[int], most: int) -> tuple[tuple[int, ...], int] | None:
        """The `most` tokens that stood behind the longest ending of `tokens` that stood in the window before, and the
        length of that ending. None: there is no such ending, or not all of the text was taken up yet. `tokens`, none of
        them negative, are those of the call before, and what has come since.
        """


class NgramWindow:
    """A `Window`. `most_tokens`: of the window, even; `most_at_once`: tokens that a call adds to automata."""

    __slots__ = ("_automaton", "_most_at_once", "_most_tokens", "_next", "_num_taken", "_window")

    def __init__(self, most_tokens: int, most_at_once: int) -> None:
        self._most_tokens, self._most_at_once = most_tokens, most_at_once
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

    def find(self, tokens: Sequence[int], most: int) -> tuple[tuple[int, ...], int] | None:
        self._take_up(tokens)
        automaton, window = self._automaton, self._window
        if self._num_taken < len(tokens) or not automaton.match_length:
            return None
        first = automaton.match_end + 1
        guessed = window[first : first + most]
        period = len(window) - first
        while len(guessed) < most:
            # The two occurrences overlap or touch: what repeats goes on repeating.
            guessed.append(guessed[-period])
        return tuple(guessed), automaton.match_length

    def _take_up(self, tokens: Sequence[int]) -> None:
        if len(tokens) - self._num_taken > self._most_tokens:
            self._num_taken = len(tokens) - self._most_tokens
            self._begin()
        left = self._most_at_once
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
        if len(self._window) == self._most_tokens and self._next is not None:
            self._automaton, self._next = self._next, None
            del self._window[: self._most_tokens // 2]
        if len(self._window) == self._most_tokens // 2:
            self._next = SuffixAutomaton()
