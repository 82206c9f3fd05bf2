"""Drafter: the interface between whoever guesses tokens and whoever has them verified.

Owns the protocols and the guess that goes between them. A guess is never trusted: its tokens are verified by the model,
so a bad drafter can cost time and never an answer (docs/concepts/speculation.md).
Invariant: a drafter is a function of the tokens that it was shown, in order; equal tokens lead to equal guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Guess(NamedTuple):
    """Tokens that may come next, in order. `levels[i]`: how sure the drafter is of token i if those before it are
    right, from 0 on; what a level is worth is learned (`plait.draft.acceptance`).
    """

    tokens: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()


NO_GUESS = Guess()


class Drafter(Protocol):
    """Of one sequence. One that needs steps of its own (a draft model) answers with what these have brought so far."""

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        """What may come behind `tokens`, `most` of them at most. `tokens` are all of the sequence: those of the call
        before, and what has come since.
        """


class DrafterSource(Protocol):
    """One way of guessing, for any number of sequences."""

    @property
    def first_rates(self) -> Sequence[float]:
        """By level, how often such a guess is taken to be right before anything was learned."""

    def begin(self) -> Drafter:
        """For a new sequence."""
