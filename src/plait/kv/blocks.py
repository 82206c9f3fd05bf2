"""Blocks: level 2 of the memory, one `BlockPool` per cache group.

Owns the state of every block of its group, and which owner each borrowed page serves. Knows nothing about tokens or
sequences' tables.
Invariant: a lent page holds at least one block that is not free; a page without one goes back to the page pool at once.

    FREE --grant--> PRIVATE --publish--> SHARED <--reference/unreference--> EVICTABLE
      ^               |  \\                                                     |
      |<----free------'   '--quarantine--> QUARANTINED --free--> FREE          |
      '<-----------------------------------free--------------------------------'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import cast

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, PageId, SeqId
from plait.kv.owners import EVERYBODY, Lifetime, OpenPages, Owner
from plait.kv.pages import PagePool
from plait.model.cache_layout import GroupLayout

OWN_PAGES = 16
"""Whoever has so many pages has the rest of his last one for himself too: it is a thirtieth of what he has. What others
need beyond whole pages they share.
"""


class BlockState(IntEnum):
    FREE = 0
    """Holds nothing, on a lent page or on none."""
    PRIVATE = 1
    """Used: in the table of one sequence, which alone may write it."""
    SHARED = 2
    """Used: published, so never written again, and referenced."""
    EVICTABLE = 3
    """Published and referenced by nobody: a cached prefix."""
    QUARANTINED = 4
    """Its sequence is released, but a step in flight may still read or write it."""


_SHARING = (Lifetime.TAIL, Lifetime.CHECKPOINTS, Lifetime.DRAFT)
PRIVATE = int(BlockState.PRIVATE)
_FREE, _PRIVATE = int(BlockState.FREE), PRIVATE
_SHARED, _EVICTABLE, _QUARANTINED = int(BlockState.SHARED), int(BlockState.EVICTABLE), int(BlockState.QUARANTINED)
_PRIVATE_ALONE = frozenset((_PRIVATE,))
_OWN = (_PRIVATE, _QUARANTINED)
"""States of blocks that only their sequence keeps from being free."""


class BlockPool:
    """The blocks of one cache group. Block ids of page p are p * blocks_per_page to (p + 1) * blocks_per_page - 1."""

    def __init__(
        self,
        layout: GroupLayout,
        page_bytes: int,
        pages: PagePool,
        by_owner: bool = True,
        own_pages: int = OWN_PAGES,
    ) -> None:
        """`by_owner=False`: pages belong to nobody, and a free block on any of them comes before a fresh page.
        `own_pages`: see `OWN_PAGES`; 0: nobody shares a page while there are fresh ones, as in Jenga.
        """
        self.layout = layout
        self.group = layout.group.id
        self.blocks_per_page = page_bytes // layout.block_bytes
        self.counts = [0] * len(BlockState)
        """Blocks by state; free ones on lent pages only."""
        self.num_unpinned_pages = 0
        """Lent pages without a pinned (private, shared or quarantined) block: eviction can give them back."""
        self.num_evicted = 0
        """Cached blocks that were freed, since the start."""
        self._pages = pages
        self._by_owner = by_owner
        self._own_pages = own_pages
        self._watcher: Callable[[PageId, bool], None] | None = None
        self._states = bytearray(layout.num_blocks)
        self._holders: list[SeqId | None] = [None] * layout.num_blocks
        self._num_pinned = [0] * pages.num_pages
        """By page, where pages have several blocks; else the block's state says it."""
        self._owner: list[Owner | None] = [None] * pages.num_pages
        self._owned: dict[Owner, dict[PageId, None]] = {}
        self._open = OpenPages()

    @property
    def slot_bytes(self) -> int:
        """Of one token, without a block's padding; 0 for states."""
        layout = self.layout
        return (layout.block_bytes - layout.padding_bytes) // layout.tokens_per_block if layout.tokens_per_block else 0

    @property
    def num_free(self) -> int:
        """Free blocks on lent pages."""
        return self.counts[BlockState.FREE]

    @property
    def num_obtainable(self) -> int:
        """Blocks this group could have after evicting everything evictable, without borrowing one of the then free
        pages.
        """
        loose = self.num_unpinned_pages * self.blocks_per_page
        return self.counts[BlockState.FREE] + self.counts[BlockState.EVICTABLE] - loose

    @property
    def states(self) -> bytearray:
        """By block, as `BlockState` counts; stays the same object. To be looked at only."""
        return self._states

    def state(self, block: BlockId) -> BlockState:
        return BlockState(self._states[block])

    def is_private(self, block: BlockId) -> bool:
        return self._states[block] == _PRIVATE

    def holder(self, block: BlockId) -> SeqId | None:
        """The sequence that a private or quarantined block was granted to; of others it means nothing."""
        return self._holders[block]

    def watch(self, watcher: Callable[[PageId, bool], None]) -> None:
        """Be told of every lent page that holds cached blocks and nothing else; true: again, as it has one less."""
        self._watcher = watcher

    def page_of(self, block: BlockId) -> PageId:
        return PageId(block // self.blocks_per_page)

    def is_loose(self, page: PageId) -> bool:
        """Whether the page is this group's and holds cached blocks only: evicting them gives it back."""
        if self.blocks_per_page == 1:
            return self._states[page] == _EVICTABLE
        return self._pages.borrower(page) == self.group and self._num_pinned[page] == 0

    def loose_pages(self) -> list[PageId]:
        return [PageId(page) for page in range(self._pages.num_pages) if self.is_loose(PageId(page))]

    def is_cached_on(self, page: PageId, block: BlockId) -> bool:
        return self._states[block] == _EVICTABLE and block // self.blocks_per_page == page

    def cached_on(self, page: PageId) -> list[BlockId]:
        """The evictable blocks of a page."""
        first = page * self.blocks_per_page
        blocks = range(first, first + self.blocks_per_page)
        return [BlockId(block) for block in blocks if self._states[block] == _EVICTABLE]

    def grant(self, owner: Owner, count: int, frugal: bool, holder: SeqId | None = None) -> list[BlockId]:
        """`count` private blocks for a lifetime, held by a sequence (default: whose tail or checkpoints they are); the
        caller has made sure that they exist.

        Where from, in this order (Jenga's, adapted: a cached block is never evicted while a free one will do, so making
        room comes before, in the facade, and none of these steps loses anything; and rests of pages are shared, which
        docs/adr/0019 weighs):
          1. free blocks of the owner's own pages: they will be freed together;
          2. a fresh page, cut up for this owner;
          3. pages whose owner has ended: such a page is adopted whole;
          4. free blocks on pages of other owners, those of trunks last.
        What does not fill a page, of an owner with few, comes from 3 before 2, and from pages of his like and of trunks
        (4) before 2: a trunk grows no more, so nobody else would ever have what is free on its pages.
        `frugal`: other groups need the fresh pages too, so step 2 comes last.
        """
        if self.blocks_per_page == 1:
            return self._grant_pages(SeqId(owner.of) if holder is None else holder, count)
        granted: list[BlockId] = []
        holder = SeqId(owner.of) if holder is None else holder
        owner = owner if self._by_owner else EVERYBODY
        while len(granted) < count:
            source = self._source(owner, frugal, count - len(granted))
            page, free = self._open.take(source)
            if source is None:
                self._own(page, owner)
                source = owner
            wanted = count - len(granted)
            taken = free[: -wanted - 1 : -1]
            if len(taken) < len(free):
                self._open.put(source, page, free[:-wanted])
            self._take(page, taken, holder)
            granted += taken
        return granted

    def publish(self, block: BlockId) -> None:
        self._turn(block, BlockState.PRIVATE, BlockState.SHARED)
        self._holders[block] = None

    def reference(self, block: BlockId) -> None:
        """A cached block is used again."""
        self._turn(block, BlockState.EVICTABLE, BlockState.SHARED)
        if self.blocks_per_page == 1:
            self.num_unpinned_pages -= 1
            return
        page = block // self.blocks_per_page
        if self._num_pinned[page] == 0:
            self.num_unpinned_pages -= 1
        self._num_pinned[page] += 1

    def unreference(self, block: BlockId) -> None:
        """Nobody uses a published block any more."""
        self._turn(block, BlockState.SHARED, BlockState.EVICTABLE)
        if self.blocks_per_page == 1:
            self.num_unpinned_pages += 1
            return
        page = PageId(block // self.blocks_per_page)
        self._unpin(page)
        self._tell(page, has_less=False)

    def quarantine(self, block: BlockId) -> None:
        self._turn(block, BlockState.PRIVATE, BlockState.QUARANTINED)

    def are_private(self, blocks: Sequence[BlockId]) -> bool:
        states = self._states
        return {states[block] for block in blocks} <= _PRIVATE_ALONE

    def quarantine_own(self, blocks: Sequence[BlockId]) -> None:
        """Those of `blocks` that are private, and not published."""
        states = self._states
        own = [block for block in blocks if states[block] == _PRIVATE]
        for block in own:
            states[block] = _QUARANTINED
        self.counts[_PRIVATE] -= len(own)
        self.counts[_QUARANTINED] += len(own)

    def free_own(self, blocks: Sequence[BlockId]) -> None:
        """Those of `blocks` that are private or quarantined, and not published."""
        states = self._states
        own = [block for block in blocks if states[block] in _OWN]
        if self.blocks_per_page > 1:
            for page, run in groupby(own, key=self.page_of):
                self._free_run(page, list(run))
            return
        num_private = [states[block] for block in own].count(_PRIVATE)
        self.counts[_PRIVATE] -= num_private
        self.counts[_QUARANTINED] -= len(own) - num_private
        for block in own:
            states[block] = _FREE
        self._pages.give_back_many(cast("list[PageId]", own), self.group)

    def _free_run(self, page: PageId, blocks: list[BlockId]) -> None:
        """Private or quarantined blocks of one page, as if one by one."""
        for block in blocks:
            self.counts[self._states[block]] -= 1
            self._states[block] = _FREE
            self._holders[block] = None
        self.counts[_FREE] += len(blocks)
        self._num_pinned[page] -= len(blocks)
        if self._num_pinned[page] == 0:
            self.num_unpinned_pages += 1
        if self._open.add(self._owner[page], page, blocks) == self.blocks_per_page:
            self._open.close(self._owner[page], page)
            self._return(page)
        else:
            self._tell(page, has_less=False)

    def free(self, block: BlockId) -> None:
        """A private, quarantined or evictable block holds nothing any more; its page goes back with its last block."""
        before = self._states[block]
        if before in (_FREE, _SHARED):
            name = BlockState(before).name.lower()
            raise InvariantError(f"block {block} of group {self.group} is freed while it is {name}")
        self._states[block] = _FREE
        self.counts[before] -= 1
        self._holders[block] = None
        if self.blocks_per_page == 1:
            self._free_page(block, was_cached=before == _EVICTABLE)
            return
        self.counts[_FREE] += 1
        page = PageId(block // self.blocks_per_page)
        if before != _EVICTABLE:
            self._unpin(page)
        else:
            self.num_evicted += 1
        if self._open.add(self._owner[page], page, (block,)) == self.blocks_per_page:
            self._open.close(self._owner[page], page)
            self._return(page)
        else:
            self._tell(page, has_less=before == _EVICTABLE)

    def _free_page(self, block: BlockId, *, was_cached: bool) -> None:
        """A block that is a page: nobody owns it, shares it or watches it."""
        page = PageId(block)
        if was_cached:
            self.num_evicted += 1
            self.num_unpinned_pages -= 1
        self._pages.give_back(page, self.group)

    def claim(self, page: PageId, owner: Owner) -> None:
        """A page whose owner has ended gets another one; what is free on it is that one's."""
        if self.blocks_per_page == 1 or not self._by_owner or self._owner[page] is not None:
            return
        self._own(page, owner)
        free = self._open.close(None, page)
        if free:
            self._open.put(owner, page, free)

    def disown(self, owner: Owner) -> None:
        """The owner has ended: what is left of its pages may be adopted."""
        for page in self._owned.pop(owner, ()):
            self._owner[page] = None
        self._open.disown(owner)

    def check(self, expected: bytearray) -> None:
        """Raise `InvariantError` unless the states are `expected` and every count and list follows from them."""
        name = f"blocks of group {self.group}"
        if expected != self._states:
            block = BlockId(next(b for b, state in enumerate(expected) if state != self._states[b]))
            right = BlockState(expected[block])
            raise InvariantError(f"{name}: block {block} is {self.state(block).name}; its users make it {right.name}")
        counts = [self._states.count(state) for state in range(len(BlockState))]
        num_unpinned, free_pages = 0, {}
        k = self.blocks_per_page
        for page in range(self._pages.num_pages):
            states = self._states[page * k : (page + 1) * k]
            num_free = states.count(BlockState.FREE)
            if self._pages.borrower(PageId(page)) != self.group:
                counts[BlockState.FREE] -= k
                if num_free != k:
                    raise InvariantError(f"{name}: page {page} is not lent to the group but holds its blocks")
                continue
            if num_free == k:
                raise InvariantError(f"{name}: page {page} is lent but all its blocks are free")
            pinned = k - num_free - states.count(BlockState.EVICTABLE)
            if k > 1 and pinned != self._num_pinned[page]:
                raise InvariantError(f"{name}: page {page} has {pinned} pinned blocks, not {self._num_pinned[page]}")
            num_unpinned += pinned == 0
            if num_free:
                free_pages[page] = [page * k + i for i, state in enumerate(states) if state == BlockState.FREE]
        if counts != self.counts or num_unpinned != self.num_unpinned_pages:
            kept = f"{self.counts} and {self.num_unpinned_pages}"
            raise InvariantError(f"{name}: {counts} by state and {num_unpinned} unpinned pages, not {kept}")
        self._check_open(name, free_pages)

    def _check_open(self, name: str, free_pages: dict[int, list[int]]) -> None:
        listed: dict[int, list[int]] = {}
        for owner, page, blocks in self._open.items():
            if self._owner[page] != owner or (owner is not None and page not in self._owned[owner]):
                raise InvariantError(f"{name}: page {page} of owner {self._owner[page]} is listed under {owner}")
            listed[page] = sorted(blocks)
        if listed != free_pages:
            raise InvariantError(f"{name}: free blocks {free_pages} are listed as {listed}")

    def _grant_pages(self, holder: SeqId, count: int) -> list[BlockId]:
        """Blocks that are pages: there is nothing to choose, and nobody to share a page with."""
        blocks = cast("list[BlockId]", self._pages.lend_many(self.group, count))
        states, holders = self._states, self._holders
        for block in blocks:
            if states[block] != _FREE:
                raise InvariantError(f"block {block} of group {self.group} is {self.state(block).name} on a free page")
            states[block] = _PRIVATE
            holders[block] = holder
        self.counts[BlockState.PRIVATE] += count
        return blocks

    def _source(self, owner: Owner, frugal: bool, count: int) -> Owner | None:
        """Whose pages the next of `count` blocks come from; borrows a page where that is the answer."""
        if owner in self._open:
            return owner
        is_short = frugal or not self._pages.num_free_for(self.group)
        if is_short or self._shares(owner, count):
            if None in self._open:
                return None
            lender = self._lender(owner, of_all=is_short)
            if lender is not None:
                return lender
        self._borrow(owner)
        return owner

    def _lender(self, owner: Owner, *, of_all: bool) -> Owner | None:
        """Another owner who has free blocks: one of the same lifetime, or `of_all`. A trunk's page may have to wait for
        them when the trunk is gone, so these come last.
        """
        for lifetime in (owner.lifetime, *(Lifetime if of_all else ())):
            lender = None if lifetime is Lifetime.TRUNK else self._open.lender(lifetime)
            if lender is not None:
                return lender
        return self._open.lender(Lifetime.TRUNK)

    def _shares(self, owner: Owner, count: int) -> bool:
        """Whether so many blocks are less than a page, and too much of what the owner has to let the rest be idle."""
        may = self._by_owner and owner.lifetime in _SHARING
        return may and count < self.blocks_per_page and len(self._owned.get(owner, ())) < self._own_pages

    def _borrow(self, owner: Owner) -> None:
        page = self._pages.lend(self.group)
        self._own(page, owner)
        first = page * self.blocks_per_page
        # Descending, because blocks are taken from the end: a sequence gets ascending ids.
        blocks = [BlockId(first + i) for i in range(self.blocks_per_page - 1, -1, -1)]
        self._open.put(owner, page, blocks)
        self.counts[BlockState.FREE] += self.blocks_per_page
        self.num_unpinned_pages += 1

    def _return(self, page: PageId) -> None:
        self.counts[BlockState.FREE] -= self.blocks_per_page
        self.num_unpinned_pages -= 1
        owner = self._owner[page]
        if owner is not None:
            self._owner[page] = None
            del self._owned[owner][page]
        self._pages.give_back(page, self.group)

    def _own(self, page: PageId, owner: Owner) -> None:
        self._owner[page] = owner
        self._owned.setdefault(owner, {})[page] = None

    def _take(self, page: PageId, blocks: list[BlockId], holder: SeqId) -> None:
        states, holders = self._states, self._holders
        for block in blocks:
            if states[block] != _FREE:
                raise InvariantError(
                    f"block {block} of group {self.group} is granted while it is {self.state(block).name}"
                )
            states[block] = _PRIVATE
            holders[block] = holder
        self.counts[_FREE] -= len(blocks)
        self.counts[_PRIVATE] += len(blocks)
        if self._num_pinned[page] == 0:
            self.num_unpinned_pages -= 1
        self._num_pinned[page] += len(blocks)

    def _unpin(self, page: PageId) -> None:
        self._num_pinned[page] -= 1
        if self._num_pinned[page] == 0:
            self.num_unpinned_pages += 1

    def _tell(self, page: PageId, *, has_less: bool) -> None:
        if self._watcher is not None and self._num_pinned[page] == 0:
            self._watcher(page, has_less)

    def _turn(self, block: BlockId, before: BlockState, after: BlockState) -> None:
        if self._states[block] != before:
            found = f"block {block} of group {self.group} is {self.state(block).name}"
            raise InvariantError(f"{found}; to become {after.name} it must be {before.name}")
        self._states[block] = after
        self.counts[before] -= 1
        self.counts[after] += 1
