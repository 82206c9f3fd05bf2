"""Drafts: guesses in a simulation that come true as often as they did for a real model.

Owns records of what an n-gram drafter found in answers of a model, and drafters that replay them: how long an ending it
found again at a place of an answer, and how many of the tokens behind that ending came. A record is of one answer, so
that lucky and unlucky places follow each other as they did.
Invariant: guesses depend on the record, the place in the answer and the seed alone; equal runs guess alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from plait.draft.drafter import NO_GUESS, Drafter, Guess
from plait.draft.ngram import FIRST_RATES, level_of

DIGITS = "0123456789abcdefghijklmnopqrstuvw"
"""Of a number from 0 to 32, more being as good as 32."""

Behind = Callable[[int, int], Sequence[int]]
"""The tokens that come behind an output token, so many of them."""


@dataclass(frozen=True, slots=True)
class Record:
    """Of one answer. Place i: behind its first i + 1 tokens. `endings`: tokens of the longest ending that stood there
    before, 0 without one; `runs`: how many of the tokens that stood behind it came.
    """

    endings: tuple[int, ...]
    runs: tuple[int, ...]

    @classmethod
    def of_text(cls, endings: str, runs: str) -> Record:
        return cls(tuple(map(DIGITS.index, endings)), tuple(map(DIGITS.index, runs)))


@cache
def records() -> Mapping[str, tuple[Record, ...]]:
    """By kind of prompt, as `bench/draft_records.py` measured them; `where` says of what."""
    text = resources.files("plait").joinpath("resources", "ngram_records.json").read_text(encoding="utf-8")
    kinds = json.loads(text)["kinds"]
    return {kind: tuple(Record.of_text(*one) for one in answers) for kind, answers in kinds.items()}


def every_record() -> tuple[Record, ...]:
    """Of all kinds of prompts, in turn, as a server would meet them."""
    kinds = list(records().values())
    longest = max(map(len, kinds))
    return tuple(kind[place] for place in range(longest) for kind in kinds if place < len(kind))


class RecordedDrafts:
    """A `DrafterSource`. Sequence after sequence gets the next record, from a place that the seed draws.

    `acceptance`: the part of the guesses that were right that is still right, 0: none ever is.
    """

    def __init__(
        self, found: Sequence[Record], behind: Behind, vocab_size: int, seed: int, acceptance: float = 1.0
    ) -> None:
        self._records = found
        self._behind = behind
        self._vocab_size = vocab_size
        self._random = random.Random(f"drafts {seed}")
        self._acceptance = acceptance
        self._num_begun = 0

    @property
    def first_rates(self) -> Sequence[float]:
        return FIRST_RATES

    def begin(self) -> Drafter:
        record = self._records[self._num_begun % len(self._records)]
        self._num_begun += 1
        runs = [self._kept(run) for run in record.runs]
        return _Replayed(record, runs, self._random.randrange(len(runs)), self._behind, self._vocab_size)

    def _kept(self, run: int) -> int:
        """The tokens of a run before the first that is wrong now."""
        if self._acceptance >= 1.0:
            return run
        return next((at for at in range(run) if self._random.random() >= self._acceptance), run)


class _Replayed:
    """A `Drafter`."""

    def __init__(self, record: Record, runs: Sequence[int], first: int, behind: Behind, vocab_size: int) -> None:
        self._record, self._runs, self._first = record, runs, first
        self._behind, self._vocab_size = behind, vocab_size
        self._num_before: int | None = None
        """Tokens of the sequence when it was asked first."""

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        if self._num_before is None:
            self._num_before = len(tokens)
        place = (self._first + len(tokens) - self._num_before) % len(self._runs)
        ending, run = self._record.endings[place], self._runs[place]
        if not ending or most < 1:
            return NO_GUESS
        right = self._behind(tokens[-1], most)
        guessed = [one if at < run else (one + 1) % self._vocab_size for at, one in enumerate(right)]
        return Guess(tuple(guessed), tuple([level_of(ending + at) for at in range(most)]))
