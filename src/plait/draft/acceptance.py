"""Acceptance: how often guesses come true, by what the drafter said of them and by sequence.

Owns the counts. They are kept of every guess, whether it was verified or not: a token that comes says of the guess that
there was for it whether it was right, so learning costs no step.
Invariant: every rate lies between 0 and 1, and what is long past is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

_FIRST_WEIGHT = 16.0
"""Observations that a first rate counts for."""

_KEPT = 0.99
"""Of the weight of what is known of a level, when one more is seen."""

_OWN_WEIGHT = 6.0
"""Guesses that were right as often as others, which every sequence begins with."""

_OWN_KEPT = 0.97
_LEAST_EXPECTED = 0.01
_MOST_CHANCE = 0.995
"""Of one token. Nothing is certain, however often it was right."""


class Acceptance:
    """Of all sequences together, by level."""

    __slots__ = ("_right", "_seen")

    def __init__(self, first_rates: Sequence[float]) -> None:
        self._right = [rate * _FIRST_WEIGHT for rate in first_rates]
        self._seen = [_FIRST_WEIGHT] * len(first_rates)

    def rate(self, level: int) -> float:
        return self._right[level] / self._seen[level]

    def note(self, level: int, is_right: bool) -> None:
        self._right[level] = self._right[level] * _KEPT + is_right
        self._seen[level] = self._seen[level] * _KEPT + 1.0


class OwnAcceptance:
    """Of one sequence: how much more or less often its guesses are right than others' of the same levels."""

    __slots__ = ("_expected", "_of_all", "_right")

    def __init__(self, of_all: Acceptance) -> None:
        self._of_all = of_all
        self._right = self._expected = _OWN_WEIGHT

    def note(self, level: int, is_right: bool) -> None:
        self._right = self._right * _OWN_KEPT + is_right
        self._expected = self._expected * _OWN_KEPT + max(self._of_all.rate(level), _LEAST_EXPECTED)
        self._of_all.note(level, is_right)

    def chances(self, levels: Sequence[int]) -> list[float]:
        """Of each token of a guess, that it and all before it are right. The ratio is one of odds: as a factor of rates
        it would count again in every token, and make long guesses out to be far worse or better than they are.
        """
        ratio, chance, chances = self._right / self._expected, 1.0, []
        known, right = -1, 0.0
        for level in levels:
            if level != known:  # most tokens of a guess are of the level of the one before
                rate = min(self._of_all.rate(level), _MOST_CHANCE)
                odds = rate / (1.0 - rate) * ratio
                known, right = level, odds / (1.0 + odds)
            chance *= right
            chances.append(chance)
        return chances
