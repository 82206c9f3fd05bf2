"""Prompts for traces that do not hold any text.

Owns how prompts are made up from lengths, and from names of blocks that stand for common beginnings. Making one costs a
few copies of references: all prompts share the tokens of one sequence, apart from a few at the start of each block.
Invariant: equal arguments give equal prompts; two prompts share the beginning that the trace says they share, and at
most some tokens of the block behind it, where its names differ by a multiple of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

_OWN = 1 << 61
"""Names of requests' own endings lie above those of blocks."""
_FEW, _MANY = 2, 6
"""Tokens that spell a name, the lowest digit first: two where that is enough, else as many as the largest need."""


def made_up_prompt(index: int, num_tokens: int, vocab_size: int) -> tuple[int, ...]:
    """A prompt whose first token differs from that of every other index up to `vocab_size`, its first two up to the
    square of it.
    """
    return _piece(index, _FEW, num_tokens, vocab_size)


def prompt_of(
    num_tokens: int, blocks: Sequence[int], block_tokens: int, index: int, vocab_size: int
) -> tuple[int, ...]:
    """A prompt that begins with its named blocks, as far as it has room for them, and ends as nobody else's: that of
    request `index`.
    """
    if not blocks:
        return made_up_prompt(index, num_tokens, vocab_size)
    prompt: list[int] = []
    for name in blocks[: -(-num_tokens // block_tokens)]:
        digits = _FEW if name < vocab_size**_FEW else _MANY
        prompt += _piece(name, digits, min(block_tokens, num_tokens - len(prompt)), vocab_size)
    prompt += _piece(_OWN + index, _MANY, num_tokens - len(prompt), vocab_size)
    return tuple(prompt)


def _piece(name: int, digits: int, num_tokens: int, vocab_size: int) -> tuple[int, ...]:
    head: list[int] = []
    for _ in range(min(digits, num_tokens)):
        name, digit = divmod(name, vocab_size)
        head.append(digit)
    if num_tokens <= digits:
        return tuple(head)
    # A sum of tuples copies references at once; unpacking them goes through a list first.
    return tuple(head) + _filling(max(256, 1 << (num_tokens - 1).bit_length()), vocab_size)[digits:num_tokens]


@lru_cache(maxsize=64)
def _filling(num_tokens: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(place % vocab_size for place in range(num_tokens))
