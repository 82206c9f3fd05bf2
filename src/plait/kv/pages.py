"""Pages: level 1 of the memory.

Owns every page of the pool and knows which cache group borrows it. Knows nothing about blocks, tokens or prefixes.
Invariant: free + lent == num_pages, and a lent page has exactly one borrower.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.errors import InvariantError
from plait.core.ids import GroupId, PageId


class PagePool:
    """Lends whole pages. The page that came back last is lent first, then ascending ids: the order depends on the calls
    alone.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = [PageId(page) for page in range(num_pages - 1, -1, -1)]
        self._borrower: list[GroupId | None] = [None] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def borrower(self, page: PageId) -> GroupId | None:
        return self._borrower[page]

    def lend(self, group: GroupId) -> PageId:
        """A free page, from now on `group`'s. Asking with none free is our bug: shortage is found before."""
        if not self._free:
            raise InvariantError(f"group {group} asks for a page but all {self.num_pages} are lent")
        page = self._free.pop()
        self._borrower[page] = group
        return page

    def lend_many(self, group: GroupId, count: int) -> list[PageId]:
        """As many pages as `lend` would give one by one."""
        if count > len(self._free):
            raise InvariantError(f"group {group} asks for {count} pages but {len(self._free)} are free")
        pages = self._free[-1 : -count - 1 : -1]
        del self._free[len(self._free) - count :]
        for page in pages:
            self._borrower[page] = group
        return pages

    def give_back(self, page: PageId, group: GroupId) -> None:
        """Only the borrower gives a page back."""
        if self._borrower[page] != group:
            raise InvariantError(f"group {group} gives back page {page}, which is lent to {self._borrower[page]}")
        self._borrower[page] = None
        self._free.append(page)

    def give_back_many(self, pages: Sequence[PageId], group: GroupId) -> None:
        """As `give_back`, one after the other."""
        borrower = self._borrower
        for page in pages:
            if borrower[page] != group:
                raise InvariantError(f"group {group} gives back page {page}, which is lent to {borrower[page]}")
            borrower[page] = None
        self._free += pages

    def check(self) -> None:
        """Raise `InvariantError` unless every page is either free, once, or lent."""
        seen = bytearray(self.num_pages)
        for page in self._free:
            if seen[page]:
                raise InvariantError(f"pages: page {page} is in the free list twice")
            seen[page] = 1
        for number, borrower in enumerate(self._borrower):
            if bool(seen[number]) == (borrower is not None):
                raise InvariantError(
                    f"pages: page {number} is {'' if seen[number] else 'not '}free but lent to {borrower}"
                )
