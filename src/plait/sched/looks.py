"""Looks: before which steps anybody is asked for guesses, where that keeps coming to nothing.

Owns the rests. A look takes time for every sequence, and the more there are the less likely it is that drafts pay: they
all have to have some. So there are fewer looks then. Counted in steps, so that equal loads are planned alike.
Invariant: one sequence alone never rests, and n of them rest for fewer than n steps.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_REST = 32
"""Steps for which nobody is asked where looks came to nothing several times."""


class _Vain(NamedTuple):
    """Looks that came to nothing, one after another. `until`: the step before which there is no other."""

    until: int
    rest: int


class Looks:
    """By sequences in a step, and unknown tokens in front of the drafts."""

    __slots__ = ("_num_steps", "_vain")

    def __init__(self) -> None:
        self._num_steps = 0
        self._vain: dict[tuple[int, int], _Vain] = {}

    def passed(self) -> None:
        """A step was planned."""
        self._num_steps += 1

    def are_due(self, num_sequences: int, num_unknown: int) -> bool:
        vain = self._vain.get((num_sequences, num_unknown))
        return vain is None or self._num_steps >= vain.until

    def came_to(self, num_sequences: int, num_unknown: int, *, nothing: bool) -> None:
        before = self._vain.pop((num_sequences, num_unknown), None)
        if nothing and num_sequences > 1:
            rest = 1 if before is None else min(2 * before.rest, num_sequences - 1, MOST_REST)
            self._vain[num_sequences, num_unknown] = _Vain(self._num_steps + 1 + rest, rest)
