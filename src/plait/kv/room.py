"""Room: how many blocks of every group, and pages for them, there are and would be after evicting.

Owns the arithmetic of shortage. Evicts nothing, and knows sequences only as demands: so many blocks of each group.
Invariant: a demand that is said to fit can be granted after evicting, whatever is evicted first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol

from plait.kv.blocks import BlockPool, BlockState
from plait.kv.hit import NO_BLOCK, Hit
from plait.kv.keeps import Keeps, keeps_of
from plait.kv.pages import PagePool
from plait.model.cache_layout import least_pages, page_plan
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


class Droppable(Protocol):
    """Holds pages that none of the groups here has, and gives them back when asked."""

    def beside(self, room: Room) -> None:
        """What the groups have room for, which counts on these pages."""

    @property
    def num_obtainable_pages(self) -> int:
        """Of these pages, those that can be had now."""


class Room:
    """A demand is met for all groups together or not at all, because they share pages, or because a sequence needs all
    of its groups.
    """

    def __init__(
        self,
        pages: PagePool,
        pools: Sequence[BlockPool],
        keeps: Sequence[Keeps],
        tokens_per_block: int,
        droppable: Droppable | None = None,
    ) -> None:
        self._pages = pages
        self._droppable = droppable
        if droppable is not None:
            droppable.beside(self)
        self._pools = tuple(pools)
        self._keeps = tuple(keeps)
        self._size = tokens_per_block
        self._num_ahead = AHEAD_BLOCKS * tokens_per_block
        self._nothing = [0] * len(self._pools)
        whole = [pool.layout.num_blocks for pool, one in zip(pools, keeps, strict=True) if one.keeps_all]
        self._most_blocks = min(whole, default=_ENDLESS // tokens_per_block)

    def needed(self, num_tokens: int) -> list[int]:
        """Blocks that a sequence holds at once at most on the way to `num_tokens` tokens."""
        return [one.most_blocks(num_tokens, self._num_ahead) for one in self._keeps]

    def short_of(self, demand: Counts) -> list[int]:
        """Groups that have to evict, or to borrow pages, before a demand is granted; none where free pages suffice.
        Asked again for everything that is evicted.
        """
        short = [g for g, (pool, count) in enumerate(zip(self._pools, demand, strict=True)) if count > pool.num_free]
        return [] if not short or self.is_free(demand) else short

    def is_free(self, demand: Counts) -> bool:
        """Whether nothing needs to be evicted for it."""
        if len(self._pools) == 1:  # asked again for every block that is evicted
            pool = self._pools[0]
            return demand[0] <= pool.num_free + self._pages.num_free * pool.blocks_per_page
        return self._suffice(self._free_pages(), demand, [pool.num_free for pool in self._pools])

    def is_obtainable(self, demand: Counts) -> bool:
        """Whether evicting everything unused would do."""
        return self._suffice(self._loose_pages(), demand, self._obtainable())

    def is_frugal(self, demand: Counts) -> bool:
        """Whether the free pages do not suffice for all groups, so that each had better look elsewhere first."""
        return not self._suffice(self._free_pages(), demand, self._nothing)

    def _suffice(self, pages: Counts, demand: Counts, have: Counts) -> bool:
        """Whether `pages` let each group have `demand[g]` blocks, of which it has `have[g]`. `pages`: of each group, or
        one number where groups share them.
        """
        needed = [
            -(-(count - blocks) // pool.blocks_per_page) if count > blocks else 0
            for pool, count, blocks in zip(self._pools, demand, have, strict=True)
        ]
        if self._pages.is_shared:
            return sum(needed) <= pages[0]
        return all(count <= most for count, most in zip(needed, pages, strict=True))

    def num_spare_pages(self, num_growing: int) -> int:
        """Pages that are free, or would be after evicting everything evictable, beyond those for a block more in every
        group of tokens for so many sequences. Droppable ones are none.
        """
        loose = self._pages.num_free + sum([pool.num_unpinned_pages for pool in self._pools])
        for pool, keeps in zip(self._pools, self._keeps, strict=True):
            missing = 0 if keeps.is_state else num_growing - pool.num_obtainable
            loose -= -(-max(0, missing) // pool.blocks_per_page)
        return loose

    def num_tokens(self) -> int:
        """Tokens that a new sequence without a hit could have."""
        return self._most_tokens(self._loose_pages(), self._obtainable(), None)

    def num_tokens_empty(self) -> int:
        """The same, alone in empty memory."""
        pages = self._pages
        whole = [pages.num_pages] if pages.is_shared else [pages.num_owned(pool.group) for pool in self._pools]
        return self._most_tokens(whole, self._nothing, None)

    def num_tokens_behind(self, hit: Hit) -> int:
        """Tokens that a sequence could have behind the full blocks of a hit, if it were opened now."""
        return self._most_tokens(*self._beside(hit), hit)

    def fits(self, hit: Hit, num_tokens: int, extra: Counts) -> bool:
        """Whether a sequence of `num_tokens` that opens `hit`, and `extra` blocks, have room."""
        pages, have = self._beside(hit)
        demand = [count + more for count, more in zip(self._behind(hit, num_tokens), extra, strict=True)]
        return self._suffice(pages, demand, have)

    def _obtainable(self) -> list[int]:
        return [pool.num_obtainable for pool in self._pools]

    def _free_pages(self) -> list[int]:
        """By group, or one number where groups share them."""
        if self._pages.is_shared:
            return [self._pages.num_free]
        return [self._pages.num_free_for(pool.group) for pool in self._pools]

    def _loose_pages(self) -> list[int]:
        """Pages that are free or would be after evicting everything evictable."""
        return self._with(self._free_pages(), [pool.num_unpinned_pages for pool in self._pools])

    def _with(self, pages: Counts, more: Counts) -> list[int]:
        """`more`: of each group."""
        if self._pages.is_shared:
            return [pages[0] + sum(more) + (0 if self._droppable is None else self._droppable.num_obtainable_pages)]
        return [count + of_group for count, of_group in zip(pages, more, strict=True)]

    def _behind(self, hit: Hit, num_tokens: int) -> list[int]:
        """What is needed beside the hit's own blocks. A state's checkpoint is copied, so it is no part of the need."""
        needed = [
            count if one.is_state else max(0, count - sum(block != NO_BLOCK for block in blocks))
            for count, one, blocks in zip(self.needed(num_tokens), self._keeps, hit.blocks, strict=True)
        ]
        return [count + more for count, more in zip(needed, hit.missing, strict=True)] if hit.missing else needed

    def holds(self, num_tokens: int, extra: Counts) -> bool:
        """Whether empty memory has room for a sequence of so many tokens and `extra` blocks."""
        pages = self._pages
        whole = [pages.num_pages] if pages.is_shared else [pages.num_owned(pool.group) for pool in self._pools]
        demand = [count + more for count, more in zip(self.needed(num_tokens), extra, strict=True)]
        return self._suffice(whole, demand, self._nothing)

    def _beside(self, hit: Hit) -> tuple[list[int], list[int]]:
        """Pages and blocks that are there without the blocks of the hit and its tail, which may be evictable now."""
        loose, have = [], []
        for g, (pool, blocks) in enumerate(zip(self._pools, hit.blocks, strict=True)):
            kept = blocks if hit.tail is None or hit.tail.blocks[g] == NO_BLOCK else (*blocks, hit.tail.blocks[g])
            idle = [block for block in kept if block != NO_BLOCK and pool.state(block) == BlockState.EVICTABLE]
            pages = dict.fromkeys(pool.page_of(block) for block in idle)
            num_kept = sum(pool.is_loose(page) for page in pages)
            loose.append(pool.num_unpinned_pages - num_kept)
            have.append(pool.num_obtainable - len(idle) + num_kept * pool.blocks_per_page)
        return self._with(self._free_pages(), loose), have

    def _most_tokens(self, pages: Counts, have: Counts, hit: Hit | None) -> int:
        """The most tokens, behind the hit, that every group can hold with `have[g]` blocks and those pages."""
        if len(self._pools) == 1 and self._keeps[0].keeps_all:
            return min(self._most_blocks, have[0] + pages[0] * self._pools[0].blocks_per_page) * self._size

        def is_too_much(count: int) -> bool:
            tokens = count * self._size
            demand = self.needed(tokens) if hit is None else self._behind(hit, hit.num_tokens + tokens)
            return not self._suffice(pages, demand, have)

        return bisect_right(range(1, self._most_blocks + 1), False, key=is_too_much) * self._size


def sequence_bytes(
    groups: Sequence[CacheGroup],
    tokens_per_block: int,
    cache_type: CacheType,
    *,
    equal_blocks: bool = False,
    padding: Sequence[int] = (),
    shares: Sequence[Fraction] = (),
) -> Callable[[int], int] | None:
    """What a sequence of so many tokens takes, in whole pages; None: as much for every token. `shares`: each group has
    such a part of the memory for good; then it is the memory in which every group can hold the sequence.
    """
    if all(group.kind is GroupKind.FULL for group in groups) and not ((equal_blocks or shares) and len(groups) > 1):
        return None
    return paged_bytes(groups, tokens_per_block, cache_type, equal_blocks=equal_blocks, padding=padding, shares=shares)


def paged_bytes(
    groups: Sequence[CacheGroup],
    tokens_per_block: int,
    cache_type: CacheType,
    *,
    equal_blocks: bool = False,
    padding: Sequence[int] = (),
    shares: Sequence[Fraction] = (),
) -> Callable[[int], int]:
    """As `sequence_bytes`, whatever the groups are."""
    page_bytes, sized = page_plan(groups, tokens_per_block, cache_type, equal_blocks=equal_blocks, padding=padding)
    keeps = [keeps_of(layout) for layout in sized]
    num_ahead = AHEAD_BLOCKS * tokens_per_block

    def num_bytes(num_tokens: int) -> int:
        blocks = [one.most_blocks(num_tokens, num_ahead) for one in keeps]
        pages = [-(-count // (page_bytes // layout.block_bytes)) for count, layout in zip(blocks, sized, strict=True)]
        if shares:
            return page_bytes * least_pages(pages, shares)
        return page_bytes * sum(pages)

    return num_bytes
