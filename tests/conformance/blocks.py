"""Blocks of a tiny model's memory: who still needs each, so that none is given away too early.

Owns reference counts only. Every block of every group takes the bytes of one page, so a block id is a page id, lent to
one group at a time; which free one is granted is drawn, so that memory is reused in every order.
Invariant: a block is free exactly when nobody refers to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from plait.core.ids import BlockId


class Blocks:
    """References are held by sequences (their tables) and by steps in flight (whatever they name)."""

    def __init__(self, num_blocks: int) -> None:
        self._free = [BlockId(block) for block in range(num_blocks)]
        self._references: Counter[BlockId] = Counter()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def grant(self, random: np.random.Generator) -> BlockId:
        block = self._free.pop(int(random.integers(len(self._free))))
        self._references[block] = 1
        return block

    def refer(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is free"
            self._references[block] += 1

    def drop(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} was dropped twice"
            if self._references[block] == 0:
                self._free.append(block)
