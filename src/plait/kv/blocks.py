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
from typing import NamedTuple, cast

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, PageId, SeqId
from plait.kv.pages import PagePool
from plait.model.cache_layout import GroupLayout


class Lifetime(IntEnum):
    """What a page may belong to."""

    TAIL = 0
    CHECKPOINTS = 1
    TRUNK = 2
    EMBEDDING = 3
    EVERYBODY = 4


class Owner(NamedTuple):
    """A page's owner is a lifetime (docs/adr/0015): what shares a page should die together. A draft model's groups are
    its own, and so are their pages.
    """

    lifetime: Lifetime
    of: int

    def __str__(self) -> str:
        return f"{self.lifetime.name.lower()} {self.of}"


_EVERYBODY = Owner(Lifetime.EVERYBODY, 0)
"""Of all pages, where there are no owners."""


def tail_of(seq: SeqId) -> Owner:
    """What a sequence computes: freed, or left to age, when it ends."""
    return Owner(Lifetime.TAIL, seq)


def checkpoints_of(seq: SeqId) -> Owner:
    """Copies of a sequence's states, which outlive it."""
    return Owner(Lifetime.CHECKPOINTS, seq)


def trunk_of(number: int) -> Owner:
    """A prefix that many share: it outlives them all."""
    return Owner(Lifetime.TRUNK, number)


def embedding_of(picture: int) -> Owner:
    """The rows of one image."""
    return Owner(Lifetime.EMBEDDING, picture)


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


_FREE, _PRIVATE = int(BlockState.FREE), int(BlockState.PRIVATE)
_SHARED, _EVICTABLE, _QUARANTINED = int(BlockState.SHARED), int(BlockState.EVICTABLE), int(BlockState.QUARANTINED)
_PRIVATE_ALONE = frozenset((_PRIVATE,))
_OWN = (_PRIVATE, _QUARANTINED)
"""States of blocks that only their sequence keeps from being free."""


class BlockPool:
    """The blocks of one cache group. Block ids of page p are p * blocks_per_page to (p + 1) * blocks_per_page - 1."""

    def __init__(self, layout: GroupLayout, page_bytes: int, pages: PagePool, by_owner: bool = True) -> None:
        """`by_owner=False`: pages belong to nobody, and a free block on any of them comes before a fresh page."""
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
        self._watcher: Callable[[PageId], None] | None = None
        self._states = bytearray(layout.num_blocks)
        self._holders: list[SeqId | None] = [None] * layout.num_blocks
        self._num_pinned = [0] * pages.num_pages
        self._owner: list[Owner | None] = [None] * pages.num_pages
        self._owned: dict[Owner, dict[PageId, None]] = {}
        self._open: dict[Owner | None, dict[PageId, list[BlockId]]] = {}
        """Free blocks of lent pages by page and the page's owner; None: the owner has ended. Without empty entries."""

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

    def state(self, block: BlockId) -> BlockState:
        return BlockState(self._states[block])

    def is_private(self, block: BlockId) -> bool:
        return self._states[block] == _PRIVATE

    def holder(self, block: BlockId) -> SeqId | None:
        """The sequence that a private or quarantined block was granted to."""
        return self._holders[block]

    def watch(self, watcher: Callable[[PageId], None]) -> None:
        """Be told of every lent page that holds cached blocks and nothing else, and again when it has one less."""
        self._watcher = watcher

    def page_of(self, block: BlockId) -> PageId:
        return PageId(block // self.blocks_per_page)

    def is_loose(self, page: PageId) -> bool:
        """Whether the page is this group's and holds cached blocks only: evicting them gives it back."""
        return self._pages.borrower(page) == self.group and self._num_pinned[page] == 0

    def loose_pages(self) -> list[PageId]:
        return [PageId(page) for page in range(self._pages.num_pages) if self.is_loose(PageId(page))]

    def cached_on(self, page: PageId) -> list[BlockId]:
        """The evictable blocks of a page."""
        first = page * self.blocks_per_page
        blocks = range(first, first + self.blocks_per_page)
        return [BlockId(block) for block in blocks if self._states[block] == _EVICTABLE]

    def grant(self, owner: Owner, count: int, frugal: bool, holder: SeqId | None = None) -> list[BlockId]:
        """`count` private blocks for a lifetime, held by a sequence (default: whose tail or checkpoints they are); the
        caller has made sure that they exist.

        Where from, in this order (Jenga's, adapted: a cached block is never evicted while a free one will do, so making
        room comes before, in the facade, and none of these steps loses anything):
          1. free blocks of the owner's own pages: they will be freed together;
          2. a fresh page, cut up for this owner;
          3. pages whose owner has ended: such a page is adopted whole;
          4. free blocks on pages of other owners, those of trunks last.
        `frugal`: other groups need the fresh pages too, so step 2 comes last.
        """
        if self.blocks_per_page == 1:
            return self._grant_pages(SeqId(owner.of) if holder is None else holder, count)
        granted: list[BlockId] = []
        holder = SeqId(owner.of) if holder is None else holder
        owner = owner if self._by_owner else _EVERYBODY
        while len(granted) < count:
            source = self._source(owner, frugal)
            pages = self._open[source]
            page, free = pages.popitem()
            if not pages:
                del self._open[source]
            if source is None:
                self._own(page, owner)
                source = owner
            wanted = count - len(granted)
            taken = free[: -wanted - 1 : -1]
            if len(taken) < len(free):
                self._open.setdefault(source, {})[page] = free[:-wanted]
            self._take(page, taken, holder)
            granted += taken
        return granted

    def publish(self, block: BlockId) -> None:
        self._turn(block, BlockState.PRIVATE, BlockState.SHARED)
        self._holders[block] = None

    def reference(self, block: BlockId) -> None:
        """A cached block is used again."""
        self._turn(block, BlockState.EVICTABLE, BlockState.SHARED)
        page = block // self.blocks_per_page
        if self._num_pinned[page] == 0:
            self.num_unpinned_pages -= 1
        self._num_pinned[page] += 1

    def unreference(self, block: BlockId) -> None:
        """Nobody uses a published block any more."""
        self._turn(block, BlockState.SHARED, BlockState.EVICTABLE)
        page = PageId(block // self.blocks_per_page)
        self._unpin(page)
        self._tell(page)

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
        states, counts, holders, num_pinned = self._states, self.counts, self._holders, self._num_pinned
        own = [block for block in blocks if states[block] in _OWN]
        if self.blocks_per_page > 1:
            for block in own:
                self.free(block)
            return
        for block in own:
            counts[states[block]] -= 1
            states[block] = _FREE
            holders[block] = None
            num_pinned[block] = 0
        self._pages.give_back_many(cast("list[PageId]", own), self.group)

    def free(self, block: BlockId) -> None:
        """A private, quarantined or evictable block holds nothing any more; its page goes back with its last block."""
        before = self._states[block]
        if before in (_FREE, _SHARED):
            name = BlockState(before).name.lower()
            raise InvariantError(f"block {block} of group {self.group} is freed while it is {name}")
        self._states[block] = _FREE
        self.counts[before] -= 1
        self.counts[_FREE] += 1
        self._holders[block] = None
        page = PageId(block // self.blocks_per_page)
        if before != _EVICTABLE:
            self._unpin(page)
        else:
            self.num_evicted += 1
        key = self._owner[page]
        pages = self._open.setdefault(key, {})
        free = pages.setdefault(page, [])
        free.append(block)
        if len(free) == self.blocks_per_page:
            del pages[page]
            if not pages:
                del self._open[key]
            self._return(page)
        else:
            self._tell(page)

    def claim(self, page: PageId, owner: Owner) -> None:
        """A page whose owner has ended gets another one; what is free on it is that one's."""
        if self.blocks_per_page == 1 or not self._by_owner or self._owner[page] is not None:
            return
        self._own(page, owner)
        pages = self._open.get(None, {})
        if page in pages:
            self._open.setdefault(owner, {})[page] = pages.pop(page)
            if not pages:
                del self._open[None]

    def disown(self, owner: Owner) -> None:
        """The owner has ended: what is left of its pages may be adopted."""
        for page in self._owned.pop(owner, ()):
            self._owner[page] = None
        left = self._open.pop(owner, None)
        if left:
            self._open.setdefault(None, {}).update(left)

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
            if pinned != self._num_pinned[page]:
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
        for owner, pages in self._open.items():
            for page, blocks in pages.items():
                if self._owner[page] != owner or (owner is not None and page not in self._owned[owner]):
                    raise InvariantError(f"{name}: page {page} of owner {self._owner[page]} is listed under {owner}")
                listed[page] = sorted(blocks)
        if listed != free_pages:
            raise InvariantError(f"{name}: free blocks {free_pages} are listed as {listed}")

    def _grant_pages(self, holder: SeqId, count: int) -> list[BlockId]:
        """Blocks that are pages: there is nothing to choose, and nobody to share a page with."""
        blocks = cast("list[BlockId]", self._pages.lend_many(self.group, count))
        states, holders, num_pinned = self._states, self._holders, self._num_pinned
        for block in blocks:
            if states[block] != _FREE:
                raise InvariantError(f"block {block} of group {self.group} is {self.state(block).name} on a free page")
            states[block] = _PRIVATE
            holders[block] = holder
            num_pinned[block] = 1
        self.counts[BlockState.PRIVATE] += count
        return blocks

    def _source(self, owner: Owner, frugal: bool) -> Owner | None:
        """Whose pages the next blocks come from; borrows a page where that is the answer."""
        if owner in self._open:
            return owner
        if frugal or not self._pages.num_free_for(self.group):
            if None in self._open:
                return None
            if self._open:
                # On a trunk's page it would keep the page from ever coming back whole: only if there is no other.
                others = (one for one in self._open if one is None or one.lifetime is not Lifetime.TRUNK)
                return next(others, next(iter(self._open)))
        self._borrow(owner)
        return owner

    def _borrow(self, owner: Owner) -> None:
        page = self._pages.lend(self.group)
        self._own(page, owner)
        first = page * self.blocks_per_page
        # Descending, because blocks are taken from the end: a sequence gets ascending ids.
        blocks = [BlockId(first + i) for i in range(self.blocks_per_page - 1, -1, -1)]
        self._open.setdefault(owner, {})[page] = blocks
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
        for block in blocks:
            self._turn(block, BlockState.FREE, BlockState.PRIVATE)
            self._holders[block] = holder
        if self._num_pinned[page] == 0:
            self.num_unpinned_pages -= 1
        self._num_pinned[page] += len(blocks)

    def _unpin(self, page: PageId) -> None:
        self._num_pinned[page] -= 1
        if self._num_pinned[page] == 0:
            self.num_unpinned_pages += 1

    def _tell(self, page: PageId) -> None:
        if self._watcher is not None and self._num_pinned[page] == 0:
            self._watcher(page)

    def _turn(self, block: BlockId, before: BlockState, after: BlockState) -> None:
        if self._states[block] != before:
            found = f"block {block} of group {self.group} is {self.state(block).name}"
            raise InvariantError(f"{found}; to become {after.name} it must be {before.name}")
        self._states[block] = after
        self.counts[before] -= 1
        self.counts[after] += 1
