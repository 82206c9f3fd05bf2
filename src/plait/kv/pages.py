"""Pages: level 1 of the memory.

Owns every page of the pool and knows which cache group borrows it. Knows nothing about blocks, tokens or prefixes.
All groups share the pages, or each has its own for good (a fixed split, the baseline that needs no pool).
Invariant: free + lent == num_pages, and a lent page has exactly one borrower.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

from plait.core.errors import InvariantError
from plait.core.ids import GroupId, PageId


class PagePool:
    """Lends whole pages. The page that came back last is lent first, then ascending ids: the order depends on the calls
    alone. `own`: how many pages each group has for itself; nothing: all groups share them.
    """

    def __init__(self, num_pages: int, own: Sequence[int] = ()) -> None:
        if own and sum(own) != num_pages:
            raise InvariantError(f"groups own {list(own)} pages of {num_pages}")
        self.num_pages = num_pages
        self.is_shared = not own
        self._own = tuple(own)
        ends = list(accumulate(own)) if own else [num_pages]
        starts = [0, *ends[:-1]]
        self._free = [
            [PageId(page) for page in range(end - 1, start - 1, -1)] for start, end in zip(starts, ends, strict=True)
        ]
        """By group, or the one list of all."""
        self._borrower: list[GroupId | None] = [None] * num_pages

    @property
    def num_free(self) -> int:
        return sum(map(len, self._free))

    def num_free_for(self, group: GroupId) -> int:
        return len(self._free_of(group))

    def num_owned(self, group: GroupId) -> int:
        """Pages that the group alone may borrow, where they are not shared."""
        return self._own[group]

    def _free_of(self, group: GroupId) -> list[PageId]:
        return self._free[0 if self.is_shared else group]

    def borrower(self, page: PageId) -> GroupId | None:
        return self._borrower[page]

    def lend(self, group: GroupId) -> PageId:
        """A free page, from now on `group`'s. Asking with none free is our bug: shortage is found before."""
        free = self._free_of(group)
        if not free:
            raise InvariantError(f"group {group} asks for a page but all {self.num_pages} are lent")
        page = free.pop()
        self._borrower[page] = group
        return page

    def lend_many(self, group: GroupId, count: int) -> list[PageId]:
        """As many pages as `lend` would give one by one."""
        free = self._free_of(group)
        if count > len(free):
            raise InvariantError(f"group {group} asks for {count} pages but {len(free)} are free")
        pages = free[-1 : -count - 1 : -1]
        del free[len(free) - count :]
        for page in pages:
            self._borrower[page] = group
        return pages

    def give_back(self, page: PageId, group: GroupId) -> None:
        """Only the borrower gives a page back."""
        if self._borrower[page] != group:
            raise InvariantError(f"group {group} gives back page {page}, which is lent to {self._borrower[page]}")
        self._borrower[page] = None
        self._free_of(group).append(page)

    def give_back_many(self, pages: Sequence[PageId], group: GroupId) -> None:
        """As `give_back`, one after the other."""
        borrower = self._borrower
        for page in pages:
            if borrower[page] != group:
                raise InvariantError(f"group {group} gives back page {page}, which is lent to {borrower[page]}")
            borrower[page] = None
        self._free_of(group).extend(pages)

    def check(self) -> None:
        """Raise `InvariantError` unless every page is either free, once, or lent."""
        seen = bytearray(self.num_pages)
        for page in chain.from_iterable(self._free):
            if seen[page]:
                raise InvariantError(f"pages: page {page} is in the free list twice")
            seen[page] = 1
        for number, borrower in enumerate(self._borrower):
            if bool(seen[number]) == (borrower is not None):
                raise InvariantError(
                    f"pages: page {number} is {'' if seen[number] else 'not '}free but lent to {borrower}"
                )
