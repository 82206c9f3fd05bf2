"""Words: prompts of so many tokens that nobody has in a cache.

Owns the choice of words: whole English words out of the built-in text, each one token of the model where that is known.
Invariant: a prompt of n tokens is n words; equal generators give equal prompts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from importlib import resources

from plait.core.errors import PlaitError

MIN_WORDS = 50
_WORD = re.compile(r"\b[a-z]{3,7}\b")

Encode = Callable[[str], list[int]]


def whole_words(encode: Encode | None) -> list[str]:
    """`encode`: tokens of a text, without what begins one; None: the model is unknown, and a word is about a token."""
    text = resources.files("plait").joinpath("resources/quality_text.txt").read_text(encoding="utf-8")
    words = sorted({word for word in _WORD.findall(text) if word.isascii()})
    if encode is not None:
        words = [word for word in words if len(encode(f" {word}")) == 1]
    if len(words) < MIN_WORDS:
        raise PlaitError(
            f"the model's vocabulary has {len(words)} English words of one token and {MIN_WORDS} are needed for "
            "prompts; bring your own with --prompts FILE"
        )
    return words


def prompt(rng: random.Random, words: list[str], num_tokens: int) -> str:
    return "".join(f" {word}" for word in rng.choices(words, k=num_tokens))
