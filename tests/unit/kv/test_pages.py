"""Pages: lent once, given back by the borrower, none lost."""

from __future__ import annotations

import pytest

from plait.core.errors import InvariantError
from plait.core.ids import GroupId, PageId
from plait.kv.pages import PagePool

FULL, WINDOW = GroupId(0), GroupId(1)


def test_pages_are_lent_in_ascending_order_and_the_last_one_back_goes_first() -> None:
    pages = PagePool(4)
    assert [pages.lend(FULL) for _ in range(3)] == [0, 1, 2]
    pages.give_back(PageId(0), FULL)
    pages.give_back(PageId(2), FULL)
    assert [pages.lend(FULL) for _ in range(3)] == [2, 0, 3]
    pages.check()


def test_a_lent_page_has_one_borrower_until_it_comes_back() -> None:
    pages = PagePool(2)
    page = pages.lend(WINDOW)
    assert pages.borrower(page) == WINDOW
    assert pages.num_free == 1
    pages.give_back(page, WINDOW)
    assert pages.borrower(page) is None
    assert pages.num_free == 2


def test_lending_from_an_empty_pool_is_our_bug() -> None:
    pages = PagePool(1)
    pages.lend(FULL)
    with pytest.raises(InvariantError, match="group 1 asks for a page but all 1 are lent"):
        pages.lend(WINDOW)


def test_only_the_borrower_gives_a_page_back() -> None:
    pages = PagePool(1)
    page = pages.lend(FULL)
    with pytest.raises(InvariantError, match="group 1 gives back page 0, which is lent to 0"):
        pages.give_back(page, WINDOW)
    pages.give_back(page, FULL)
    with pytest.raises(InvariantError, match="which is lent to None"):
        pages.give_back(page, FULL)


def test_check_finds_a_lost_page() -> None:
    pages = PagePool(2)
    pages._free[0].pop()
    with pytest.raises(InvariantError, match="page 0 is not free but lent to None"):
        pages.check()


def test_check_finds_a_page_that_is_free_twice() -> None:
    pages = PagePool(2)
    pages._free[0].append(PageId(1))
    with pytest.raises(InvariantError, match="page 1 is in the free list twice"):
        pages.check()
