"""Literals: tokens that are recognised in text by their exact spelling, before any merging.

Owns finding them: leftmost first, the longest where several start at one place. Knows nothing about vocabularies or
chats. Invariant: a split joined again is the text, and its even entries contain no literal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


class Literals:
    """A fixed set of token texts with their ids."""

    __slots__ = ("_heads", "_longest", "_pattern", "_tails", "ids")

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = {text: token for text, token in ids.items() if text}
        # Python's alternation takes the first branch that fits, so longer spellings must come first.
        spellings = sorted(self.ids, key=lambda text: (-len(text), text))
        self._pattern = re.compile("(" + "|".join(map(re.escape, spellings)) + ")") if spellings else None
        self._longest = max(map(len, spellings), default=0)
        self._heads = frozenset(text[:cut] for text in spellings for cut in range(1, len(text)))
        self._tails = frozenset(text[cut:] for text in spellings for cut in range(1, len(text)))

    def split(self, text: str) -> list[str]:
        """Plain text at even places, literals at odd places."""
        return self._pattern.split(text) if self._pattern else [text]

    def found_in(self, text: str) -> bool:
        return self._pattern is not None and self._pattern.search(text) is not None

    def begun_by(self, text: str) -> bool:
        """Whether text that follows `text` could complete a literal: `text` ends with the head of one."""
        return any(text[-size:] in self._heads for size in range(1, min(self._longest, len(text) + 1)))

    def completed_by(self, text: str) -> bool:
        """Whether `text` could complete a literal begun before it: `text` begins with the tail of one."""
        return any(text[:size] in self._tails for size in range(1, min(self._longest, len(text) + 1)))
