"""Room: how many blocks of every group, and pages for them, there are and would be after evicting.

Owns the arithmetic of shortage. Evicts nothing, and knows sequences only as demands: so many blocks of each group.
Invariant: a demand that is said to fit can be granted after evicting, whatever is evicted first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from plait.kv.blocks import BlockPool, BlockState
from plait.kv.hit import NO_BLOCK, Hit
from plait.kv.keeps import Keeps, keeps_of
from plait.kv.pages import PagePool
from plait.model.cache_layout import page_plan
from plait.model.cache_type import CacheType
from plait.model.parts import CacheGroup, GroupKind

AHEAD_BLOCKS = 4
"""Blocks of every group with a window that a sequence which starts is promised beyond the window. More make its chunks
longer while memory is short, and keep others waiting for it.
"""

Counts = Sequence[int]
"""Blocks, by group."""

_ENDLESS = 1 << 30
"""More tokens than any sequence has."""


class Room:
    """Pages are shared by all groups, so a demand is met by all of them together or not at all."""

    def __init__(
        self, pages: PagePool, pools: Sequence[BlockPool], keeps: Sequence[Keeps], tokens_per_block: int
    ) -> None:
        self._pages = pages
        self._pools = tuple(pools)
        self._keeps = tuple(keeps)
        self._size = tokens_per_block
        self._num_ahead = AHEAD_BLOCKS * tokens_per_block
        whole = [pool.layout.num_blocks for pool, one in zip(pools, keeps, strict=True) if one.keeps_all]
        self._most_blocks = min(whole, default=_ENDLESS // tokens_per_block)

    def needed(self, num_tokens: int) -> list[int]:
        """Blocks that a sequence holds at once at most on the way to `num_tokens` tokens."""
        return [one.most_blocks(num_tokens, self._num_ahead) for one in self._keeps]

    def missing(self, demand: Counts) -> list[int]:
        """Groups that have to evict, or to borrow pages, before a demand is granted."""
        return [g for g, (pool, count) in enumerate(zip(self._pools, demand, strict=True)) if count > pool.num_free]

    def num_pages_for(self, demand: Counts, have: Counts) -> int:
        """Further pages needed so that each group has `demand[g]` blocks, of which it has `have[g]`."""
        return sum(
            [
                -(-(count - blocks) // pool.blocks_per_page)
                for pool, count, blocks in zip(self._pools, demand, have, strict=True)
                if count > blocks
            ]
        )

    def is_free(self, demand: Counts) -> bool:
        """Whether nothing needs to be evicted for it."""
        return self.num_pages_for(demand, [pool.num_free for pool in self._pools]) <= self._pages.num_free

    def is_obtainable(self, demand: Counts) -> bool:
        """Whether evicting everything unused would do."""
        return self.num_pages_for(demand, self._obtainable()) <= self._num_loose_pages()

    def is_frugal(self, demand: Counts) -> bool:
        """Whether the free pages do not suffice for all groups, so that each had better look elsewhere first."""
        wanted = sum([-(-count // pool.blocks_per_page) for pool, count in zip(self._pools, demand, strict=True)])
        return wanted > self._pages.num_free

    def num_tokens(self) -> int:
        """Tokens that a new sequence without a hit could have."""
        return self._most_tokens(self._num_loose_pages(), self._obtainable(), None)

    def num_tokens_empty(self) -> int:
        """The same, alone in empty memory."""
        return self._most_tokens(self._pages.num_pages, [0] * len(self._pools), None)

    def num_tokens_behind(self, hit: Hit) -> int:
        """Tokens that a sequence could have behind the full blocks of a hit, if it were opened now."""
        return self._most_tokens(*self._beside(hit), hit)

    def fits(self, hit: Hit, num_tokens: int, extra: Counts) -> bool:
        """Whether a sequence of `num_tokens` that opens `hit`, and `extra` blocks, have room."""
        num_pages, have = self._beside(hit)
        demand = [count + more for count, more in zip(self._behind(hit, num_tokens), extra, strict=True)]
        return self.num_pages_for(demand, have) <= num_pages

    def _obtainable(self) -> list[int]:
        return [pool.num_obtainable for pool in self._pools]

    def _num_loose_pages(self) -> int:
        """Pages that are free or would be after evicting everything evictable."""
        return self._pages.num_free + sum(pool.num_unpinned_pages for pool in self._pools)

    def _behind(self, hit: Hit, num_tokens: int) -> list[int]:
        """What is needed beside the hit's own blocks. A state's checkpoint is copied, so it is no part of the need."""
        return [
            count if one.is_state else max(0, count - sum(block != NO_BLOCK for block in blocks))
            for count, one, blocks in zip(self.needed(num_tokens), self._keeps, hit.blocks, strict=True)
        ]

    def _beside(self, hit: Hit) -> tuple[int, list[int]]:
        """Pages and blocks that are there without the blocks of the hit and its tail, which may be evictable now."""
        num_pages, have = self._pages.num_free, []
        for g, (pool, blocks) in enumerate(zip(self._pools, hit.blocks, strict=True)):
            kept = blocks if hit.tail is None or hit.tail.blocks[g] == NO_BLOCK else (*blocks, hit.tail.blocks[g])
            idle = [block for block in kept if block != NO_BLOCK and pool.state(block) == BlockState.EVICTABLE]
            pages = dict.fromkeys(pool.page_of(block) for block in idle)
            num_kept = sum(pool.is_loose(page) for page in pages)
            num_pages += pool.num_unpinned_pages - num_kept
            have.append(pool.num_obtainable - len(idle) + num_kept * pool.blocks_per_page)
        return num_pages, have

    def _most_tokens(self, num_pages: int, have: Counts, hit: Hit | None) -> int:
        """The most tokens, behind the hit, that every group can hold with `have[g]` blocks and `num_pages` pages."""
        if len(self._pools) == 1 and self._keeps[0].keeps_all:
            return min(self._most_blocks, have[0] + num_pages * self._pools[0].blocks_per_page) * self._size

        def pages_for(count: int) -> int:
            tokens = count * self._size
            demand = self.needed(tokens) if hit is None else self._behind(hit, hit.num_tokens + tokens)
            return self.num_pages_for(demand, have)

        return bisect_right(range(1, self._most_blocks + 1), num_pages, key=pages_for) * self._size


def sequence_bytes(
    groups: Sequence[CacheGroup], tokens_per_block: int, cache_type: CacheType, *, equal_blocks: bool = False
) -> Callable[[int], int] | None:
    """What a sequence of so many tokens takes, in whole pages; None: as much for every token."""
    if all(group.kind is GroupKind.FULL for group in groups) and not (equal_blocks and len(groups) > 1):
        return None
    page_bytes, sized = page_plan(groups, tokens_per_block, cache_type, equal_blocks=equal_blocks)
    keeps = [keeps_of(layout) for layout in sized]
    num_ahead = AHEAD_BLOCKS * tokens_per_block

    def num_bytes(num_tokens: int) -> int:
        blocks = [one.most_blocks(num_tokens, num_ahead) for one in keeps]
        return page_bytes * sum(
            -(-count // (page_bytes // layout.block_bytes)) for count, layout in zip(blocks, sized, strict=True)
        )

    return num_bytes
