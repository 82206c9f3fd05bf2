"""Draft model: what a smaller model of the same vocabulary says next, seen from one sequence.

Owns what the draft model has computed of the sequence, what it said behind it, and how often it was right. Runs
nothing: who makes its steps (`plait.sched.rounds`) tells it what they brought.
Invariant: the first `num_computed` slots of the draft model's cache hold the sequence's own tokens, or what it said
last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import log

from plait.draft.acceptance import Acceptance, OwnAcceptance
from plait.draft.drafter import NO_GUESS, Drafter, Guess

_BOUNDS = tuple(log(chance) for chance in (0.2, 0.4, 0.6, 0.75, 0.9, 0.97))
"""Log-probabilities that the draft model gives what it says: where one level ends and the next begins."""

FIRST_RATES = (0.15, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)

_FIRST_RATE = 0.7
"""How often a draft model is taken to be right before it was asked."""


class ModelDrafter:
    """A `Drafter`."""

    __slots__ = ("_levels", "_num_known", "_own", "_said", "is_broken", "num_computed")

    def __init__(self, of_all: Acceptance) -> None:
        self._own = OwnAcceptance(of_all)
        self._num_known = 0
        """How many tokens of the sequence are known to be before those of `_said`."""
        self._said: list[int] = []
        self._levels: list[int] = []
        self.num_computed = 0
        self.is_broken = False
        """The draft model fails behind this text, so it is not asked again."""

    @property
    def rate(self) -> float:
        """How often what it says of this sequence is right, if what it said before was."""
        return self._own.chances((0,))[0]

    def follow(self, tokens: Sequence[int]) -> int:
        """The sequence has these tokens now: those of the call before, and what came since. Returns how many of them
        need not be computed again, less than all.
        """
        came = tokens[self._num_known : self._num_known + len(self._said)]
        num_right = 0
        for token, said in zip(came, self._said, strict=False):
            self._own.note(0, token == said)
            if token != said:
                break
            num_right += 1
        if self._num_known + num_right == len(tokens):
            del self._said[:num_right], self._levels[:num_right]
        else:
            self.num_computed = min(self.num_computed, self._num_known + num_right)
            self._said, self._levels = [], []
        self._num_known = len(tokens)
        return min(self.num_computed, len(tokens) - 1)

    def begin(self, tokens: Sequence[int]) -> int:
        """As `follow`; what it said is forgotten, because it will say it anew."""
        num_kept = self.follow(tokens)
        self.num_computed = num_kept
        self._said, self._levels = [], []
        return num_kept

    def computed(self, end: int) -> None:
        """A step has computed up to slot `end`."""
        self.num_computed = end

    def say(self, token: int, logprob: float) -> None:
        """Behind everything computed so far."""
        self._said.append(token)
        self._levels.append(bisect_right(_BOUNDS, logprob))

    def forget(self) -> None:
        """Its part of the draft model's cache is gone."""
        self.num_computed = 0
        self._said, self._levels = [], []

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        self.follow(tokens)
        return Guess(tuple(self._said[:most]), tuple(self._levels[:most])) if self._said else NO_GUESS


class ModelDrafts:
    """A `DrafterSource`."""

    def __init__(self) -> None:
        self._acceptance = Acceptance((_FIRST_RATE,))

    @property
    def first_rates(self) -> Sequence[float]:
        return FIRST_RATES

    def begin(self) -> Drafter:
        return ModelDrafter(self._acceptance)
