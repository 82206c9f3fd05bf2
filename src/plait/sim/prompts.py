"""Prompts for traces that do not hold any text.

Owns how prompts are made up from lengths, and from ids of blocks that stand for shared prefixes. Making one costs a few
copies of references: all prompts share the tokens of one sequence, apart from two at each beginning.
Invariant: equal arguments give equal prompts; two prompts share exactly the beginning that the trace says they share
(and one token more where there are more blocks than tokens in the vocabulary).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from plait.core.errors import UsageError

BLOCK_TOKENS = 512
"""Tokens that one id stands for in Mooncake's traces."""


def made_up_prompt(index: int, num_tokens: int, vocab_size: int) -> tuple[int, ...]:
    """A prompt whose first token differs from that of every other index up to `vocab_size`, its first two up to the
    square of it.
    """
    return _piece(index, num_tokens, vocab_size)


def block_prompt(
    ids: Sequence[int], num_tokens: int, vocab_size: int, block_tokens: int = BLOCK_TOKENS
) -> tuple[int, ...]:
    """A prompt of `num_tokens` in blocks of which each has an id, the last perhaps not whole. Two prompts share as many
    tokens as leading ids.
    """
    if len(ids) != -(-num_tokens // block_tokens):
        raise UsageError(
            f"{len(ids)} block ids for {num_tokens} tokens; blocks of {block_tokens} tokens make that "
            f"{-(-num_tokens // block_tokens)}"
        )
    prompt: list[int] = []
    for number in ids:
        prompt += _piece(number, min(block_tokens, num_tokens - len(prompt)), vocab_size)
    return tuple(prompt)


def _piece(index: int, num_tokens: int, vocab_size: int) -> tuple[int, ...]:
    head = (index % vocab_size, index // vocab_size % vocab_size)
    if num_tokens <= len(head):
        return head[:num_tokens]
    return head + _filling(max(256, 1 << (num_tokens - 1).bit_length()), vocab_size)[2:num_tokens]


@lru_cache(maxsize=64)
def _filling(num_tokens: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(place % vocab_size for place in range(num_tokens))
