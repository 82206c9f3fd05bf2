"""Turns: conversations whose prompts grow, so that as much is reused as was published.

Owns the pool of conversations. Which fraction of requests continues one is in the card, found by trial: that with which
20,000 prompts find as much on average as was published, in a cache that forgets nothing.
Invariant: a continued prompt begins with the whole of the one before it, in blocks.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Iterator

from plait.sim.cards.lengths import CutLognormal

BLOCK_TOKENS = 64
OPEN = 64
"""Conversations that may go on."""


class Turns:
    def __init__(self, prompt: CutLognormal, fraction: float, rng: random.Random) -> None:
        self.block_tokens = BLOCK_TOKENS
        self._prompt = prompt
        self._fraction = fraction
        self._rng = rng
        self._lengths: list[tuple[int, int]] = []
        """(blocks, conversation) of the open ones, the shortest first."""
        self._blocks: dict[int, list[int]] = {}
        self._num_blocks = 0
        self._num_conversations = 0

    def next(self) -> tuple[int, tuple[int, ...]]:
        """A prompt's length in tokens and the names of its blocks."""
        num_prompt = self._prompt.draw(self._rng)
        whole = num_prompt // BLOCK_TOKENS
        # The longest that leaves at least a block to say.
        place = bisect_left(self._lengths, (whole, -1)) - 1
        if place >= 0 and self._rng.random() < self._fraction:
            _, conversation = self._lengths.pop(place)
            blocks = self._blocks[conversation]
        else:
            conversation, blocks = self._opened()
        grown = whole - len(blocks)
        blocks.extend(range(self._num_blocks, self._num_blocks + grown))
        self._num_blocks += grown
        insort(self._lengths, (whole, conversation))
        return num_prompt, tuple(blocks)

    def _opened(self) -> tuple[int, list[int]]:
        """A new conversation; one at random is over if there are too many."""
        if len(self._lengths) >= OPEN:
            _, ended = self._lengths.pop(self._rng.randrange(OPEN))
            del self._blocks[ended]
        self._num_conversations += 1
        self._blocks[self._num_conversations] = []
        return self._num_conversations, self._blocks[self._num_conversations]


def reused_tokens(prompt: CutLognormal, fraction: float, seed: str) -> Iterator[int]:
    """What each request finds of earlier ones, without end."""
    turns, seen = Turns(prompt, fraction, random.Random(seed)), 0
    while True:
        _, blocks = turns.next()
        # Blocks are numbered as they come up, so those below the count were there before.
        found = bisect_left(blocks, seen)
        seen += len(blocks) - found
        yield found * BLOCK_TOKENS
