"""Drafting: drafters for tests, among them every kind of bad one, all of them verified without asking for the price.

Owns guesses that are known to be right or wrong because the answers are known. Equal tokens lead to equal guesses.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from plait.assembly import Drafting
from plait.draft.depth import FixedDepth
from plait.draft.drafter import NO_GUESS, Drafter, Guess
from plait.draft.ngram import NgramDrafts

GuessOf = Callable[[Sequence[int], int], Sequence[int]]
"""Of tokens and how many are wanted."""


@dataclass(slots=True)
class Guesser:
    """A `DrafterSource` and its `Drafter`, which is the same for every sequence."""

    guess_of: GuessOf
    first_rates: Sequence[float] = (0.5,)
    num_guessed: int = 0

    def begin(self) -> Drafter:
        return self

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        guessed = tuple(self.guess_of(tokens, most))
        self.num_guessed += len(guessed)
        return Guess(guessed, (0,) * len(guessed)) if guessed else NO_GUESS


def knows(texts: Iterable[Sequence[int]]) -> GuessOf:
    """Says how the first of some whole texts goes on that begins as the sequence does."""
    known = [tuple(text) for text in texts]

    def guess(tokens: Sequence[int], most: int) -> Sequence[int]:
        begun = tuple(tokens)
        found = (text for text in known if len(text) > len(begun) and text[: len(begun)] == begun)
        return next(found, ())[len(begun) : len(begun) + most]

    return guess


def spoiled(right: GuessOf, vocab_size: int) -> GuessOf:
    """Sometimes right to the end, sometimes wrong from somewhere on, sometimes silent."""

    def guess(tokens: Sequence[int], most: int) -> Sequence[int]:
        dice = random.Random(zlib.crc32(repr(tuple(tokens)).encode()))
        guessed = list(right(tokens, dice.randint(0, most)))
        if guessed and dice.random() < 0.7:
            place = dice.randrange(len(guessed))
            guessed[place:] = [dice.randrange(vocab_size) for _ in guessed[place:]]
        return guessed

    return guess


def adversaries(texts: Iterable[Sequence[int]], vocab_size: int) -> dict[str, Drafting]:
    """`texts`: prompts with their answers."""
    right = knows(texts)

    def wrong(tokens: Sequence[int], most: int) -> Sequence[int]:
        return [(token + 1) % vocab_size for token in (*right(tokens, most), 5)][:most]

    sources = {
        "always right": Guesser(right),
        "always wrong": Guesser(wrong),
        "right to some place": Guesser(spoiled(right, vocab_size)),
        "empty": Guesser(lambda tokens, most: ()),
        "over-long": Guesser(lambda tokens, most: right(tokens, 10 * most) or [7] * 10 * most),
        "out of the vocabulary": Guesser(lambda tokens, most: [*right(tokens, 2), vocab_size, -1, 1 << 40][:most]),
        "n-grams": NgramDrafts(),
    }
    return {name: Drafting(source, FixedDepth(5)) for name, source in sources.items()}
