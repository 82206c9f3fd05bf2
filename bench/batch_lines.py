"""Lines of a batch for measurements: prompts of random words, answers of a length that is known."""

from __future__ import annotations

import random

Line = dict[str, object]

WORDS = (
    "river",
    "stone",
    "light",
    "cloud",
    "paper",
    "green",
    "window",
    "story",
    "morning",
    "garden",
    "copper",
    "music",
)


def drawn_words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(count))


def completion(custom_id: str, prompt: str, tokens: int) -> Line:
    """Asks for exactly so many tokens."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
