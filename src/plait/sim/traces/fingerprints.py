"""Fingerprints: which prompts begin alike, from their tokens or their text, without keeping either.

Owns the names of blocks: running numbers, one for each block of tokens and all that stands before it. Knows no file.
Invariant: two prompts have equal names exactly as far as their whole blocks are equal; nothing can be read back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 16
LETTERS_PER_TOKEN = 6
MESSAGE_TOKENS = 4
"""What a chat template adds to each message: its role and two or three marks."""
_PIECES = re.compile(r"\s?[^\W\d_]+|\s?\d{1,3}|\s?[^\w\s]{1,3}|_|\s+")


class Fingerprints:
    """Numbers for blocks, in order of their first appearance. Keeps 16 bytes for each block that was seen."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self._names: dict[bytes, int] = {}

    def blocks(self, tokens: Sequence[object]) -> tuple[int, ...]:
        """One name for each whole block."""
        chain, found = blake2b(digest_size=16), []
        for start in range(0, len(tokens) - self.block_tokens + 1, self.block_tokens):
            chain.update(repr(tokens[start : start + self.block_tokens]).encode("utf-8", "backslashreplace"))
            found.append(self._names.setdefault(chain.digest(), len(self._names)))
        return tuple(found)


def pieces_of(text: str) -> list[str]:
    """A text cut into about as many pieces as a tokenizer would make tokens of it, without a tokenizer."""
    found: list[str] = []
    for piece in _PIECES.findall(text):
        if len(piece) <= LETTERS_PER_TOKEN + 2:
            found.append(piece)
        else:
            found += [piece[at : at + LETTERS_PER_TOKEN] for at in range(0, len(piece), LETTERS_PER_TOKEN)]
    return found
