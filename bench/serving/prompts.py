"""Prompts: random whole words of the model's own vocabulary.

Owns the choice of words, one token each, so that every engine counts alike whether it is given ids or text.
Invariant: a prompt of n tokens is n words; equal generators give equal prompts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

WORD_START = "\u0120"
"""How byte-level vocabularies write the space in front of a word."""

FREQUENT_TOKENS = 20_000
"""Merges that came early are frequent words; later ones are rare and odd."""

MIN_WORDS = 100


@dataclass(frozen=True, slots=True)
class Word:
    token: int
    text: str


def whole_words(vocabulary: Sequence[str]) -> list[Word]:
    """Lower-case English words of three to seven letters with a space in front; `vocabulary` is token texts by id."""
    words = [
        Word(token, text[1:])
        for token, text in enumerate(vocabulary[:FREQUENT_TOKENS])
        if text.startswith(WORD_START) and 4 <= len(text) <= 8 and text[1:].isascii() and text[1:].islower()
        if text[1:].isalpha()
    ]
    if len(words) < MIN_WORDS:
        raise ValueError(
            f"the vocabulary has {len(words)} whole words and at least {MIN_WORDS} are needed; "
            "give a model with a byte-level vocabulary"
        )
    return words


def prompt(rng: random.Random, words: Sequence[Word], num_tokens: int) -> tuple[Word, ...]:
    return tuple(rng.choices(words, k=num_tokens))
