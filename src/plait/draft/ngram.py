"""N-gram drafter: what stood behind the same words earlier in prompt and output will stand there again.

Owns the levels of its guesses: the length of the ending that was found again. "Prompt lookup" as Saxena, "Prompt Lookup
Decoding", 2023, has it, over the longest ending of all. The window in which it looks is `plait.draft.window`'s.
Invariant: a guess is what the window found, whole; its levels follow from the length alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.draft.drafter import NO_GUESS, Drafter, Guess
from plait.draft.window import MOST_AT_ONCE, MOST_TOKENS, NgramWindow, Window

_LENGTHS = (1, 2, 3, 4, 6, 9, 16, 32)
"""The shortest ending of each level."""

FIRST_RATES = (0.15, 0.3, 0.45, 0.55, 0.65, 0.75, 0.8, 0.85)

_LONGEST = _LENGTHS[-1]
_LEVELS = tuple(sum(shortest <= length for shortest in _LENGTHS) - 1 for length in range(_LONGEST + 1))
"""By length of the ending; longer ones are like the last. Length 0 has none."""


def level_of(length: int) -> int:
    """Of a guess behind an ending of so many tokens, at least one."""
    return _LEVELS[min(length, _LONGEST)]


_LEVELS_FROM = tuple(tuple(level_of(length + place) for place in range(_LONGEST)) for length in range(_LONGEST + 1))
"""By length of the ending, of the tokens of a guess; further ones are like the last."""


def levels_from(length: int, count: int) -> tuple[int, ...]:
    """Of the tokens of a guess behind an ending of so many tokens: each lengthens it for the next."""
    levels = _LEVELS_FROM[min(length, _LONGEST)]
    return levels[:count] if count <= _LONGEST else levels + levels[-1:] * (count - _LONGEST)


class NgramDrafter:
    """A `Drafter`."""

    __slots__ = ("_find",)

    def __init__(self, window: Window) -> None:
        self._find = window.find

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        found = self._find(tokens, most)
        return NO_GUESS if found is None else Guess(found[0], levels_from(found[1], most))


class NgramDrafts:
    """A `DrafterSource`. `window`: makes one of so many tokens, of which a call adds so many."""

    def __init__(self, window: Callable[[int, int], Window] = NgramWindow) -> None:
        self._window = window

    @property
    def first_rates(self) -> Sequence[float]:
        return FIRST_RATES

    def begin(self) -> Drafter:
        return NgramDrafter(self._window(MOST_TOKENS, MOST_AT_ONCE))
