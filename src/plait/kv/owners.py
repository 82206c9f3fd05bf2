"""Owners: whose a page may be, and which owners have free blocks on theirs.

Owns the kinds of lifetimes and the list of open pages of one cache group. Knows no state of a block.
Invariant: no owner is listed without an open page, and no page without a free block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from plait.core.ids import BlockId, PageId, SeqId


class Lifetime(IntEnum):
    """What a page may belong to."""

    TAIL = 0
    CHECKPOINTS = 1
    TRUNK = 2
    EMBEDDING = 3
    EVERYBODY = 4
    DRAFT = 5


class Owner(NamedTuple):
    """A page's owner is a lifetime (docs/adr/0015): what shares a page should die together. A draft model's groups are
    its own, and so are their pages.
    """

    lifetime: Lifetime
    of: int

    def __str__(self) -> str:
        return f"{self.lifetime.name.lower()} {self.of}"


EVERYBODY = Owner(Lifetime.EVERYBODY, 0)
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


def draft_of(seq: SeqId) -> Owner:
    """What a draft model computes of a sequence: it may be dropped at any time."""
    return Owner(Lifetime.DRAFT, seq)


def embedding_of(picture: int) -> Owner:
    """The rows of one image."""
    return Owner(Lifetime.EMBEDDING, picture)


class OpenPages:
    """Free blocks of lent pages, by page and the page's owner. O(1) for each change and each search."""

    def __init__(self) -> None:
        self._of: dict[Owner | None, dict[PageId, list[BlockId]]] = {}
        """None: the owner has ended."""
        self._owners: dict[Lifetime, dict[Owner, None]] = {}

    def __contains__(self, owner: Owner | None) -> bool:
        return owner in self._of

    def __bool__(self) -> bool:
        return bool(self._of)

    def items(self) -> Iterator[tuple[Owner | None, PageId, list[BlockId]]]:
        return ((owner, page, free) for owner, pages in self._of.items() for page, free in pages.items())

    def lender(self, lifetime: Lifetime) -> Owner | None:
        """One of such a lifetime who has free blocks."""
        return next(iter(self._owners.get(lifetime, ())), None)

    def take(self, owner: Owner | None) -> tuple[PageId, list[BlockId]]:
        """The page that was opened last, which is listed no more."""
        page = next(reversed(self._of[owner]))
        return page, self.close(owner, page)

    def put(self, owner: Owner | None, page: PageId, free: list[BlockId]) -> None:
        pages = self._of.get(owner)
        if pages is None:
            pages = self._of[owner] = {}
            if owner is not None:
                self._owners.setdefault(owner.lifetime, {})[owner] = None
        pages[page] = free

    def add(self, owner: Owner | None, page: PageId, blocks: Sequence[BlockId]) -> int:
        """More free blocks; returns how many the page has."""
        pages = self._of.get(owner)
        if pages is None or page not in pages:
            self.put(owner, page, [*blocks])
            return len(blocks)
        pages[page] += blocks
        return len(pages[page])

    def close(self, owner: Owner | None, page: PageId) -> list[BlockId]:
        """A page is listed no more; returns its free blocks, nothing if it was not listed."""
        pages = self._of.get(owner, {})
        free = pages.pop(page, [])
        if not pages:
            self._forget(owner)
        return free

    def disown(self, owner: Owner) -> None:
        """The owner has ended."""
        left = self._of.get(owner)
        if left:
            self._forget(owner)
            self._of.setdefault(None, {}).update(left)

    def _forget(self, owner: Owner | None) -> None:
        if self._of.pop(owner, None) is not None and owner is not None:
            del self._owners[owner.lifetime][owner]
