"""Prompts: tokens for requests of which only lengths and common beginnings are known.

Owns the text of a named block and of what is nobody else's. Knows no file and no engine.
Invariant: equal names give equal tokens, other names other first tokens (as long as they differ by no multiple of the
vocabulary), and so no prefix index mistakes one for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from plait.sim.arrivals import made_up_prompt

_HEAD = 6
"""Tokens that spell a name, the lowest digit first; the rest of a block is alike in all."""
_OWN = 1 << 61
"""Names of requests' own endings lie above those of blocks."""


def prompt_of(num_tokens: int, blocks: Sequence[int], block_tokens: int, index: int, vocab_size: int) -> tuple[int, ...]:
    """A prompt that begins with its named blocks, as far as it has room for them, and ends as nobody else's."""
    if not blocks:
        return made_up_prompt(index, num_tokens, vocab_size)
    found: list[int] = []
    for name in blocks[: -(-num_tokens // block_tokens)]:
        found += _spelled(name, vocab_size)[:block_tokens]
        found += _filler(vocab_size, max(0, block_tokens - _HEAD))
    rest = num_tokens - len(found)
    if rest > 0:
        found += _spelled(_OWN + index, vocab_size)[:rest]
        found += _filler(vocab_size, max(0, rest - _HEAD))
    return tuple(found[:num_tokens])


def _spelled(name: int, vocab_size: int) -> list[int]:
    digits = []
    for _ in range(_HEAD):
        name, digit = divmod(name, vocab_size)
        digits.append(digit)
    return digits


@lru_cache(maxsize=64)
def _filler(vocab_size: int, num_tokens: int) -> tuple[int, ...]:
    return tuple(place % vocab_size for place in range(num_tokens))
