"""Blocks: where granted blocks come from, what becomes of them, and when a page goes back.

Pages are drawn as `|..|..|`: one letter per block, in the order of block ids; `.` is free, `-` a page that is not lent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import pytest
from tests.unit.kv.kit import full_groups, make_layout

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, PageId, SeqId
from plait.kv.blocks import BlockPool, BlockState
from plait.kv.owners import checkpoints_of, tail_of
from plait.kv.pages import PagePool

A, B, C = (tail_of(SeqId(number)) for number in range(3))
LETTERS = {BlockState.SHARED: "S", BlockState.EVICTABLE: "e", BlockState.QUARANTINED: "q", BlockState.FREE: "."}


@dataclass
class Lot:
    """A page pool and the block pools of its groups."""

    pages: PagePool
    pools: list[BlockPool]

    @property
    def pool(self) -> BlockPool:
        return self.pools[0]

    def picture(self, group: int = 0) -> str:
        """Private blocks are shown by their holder: A, B, C."""
        pool = self.pools[group]
        drawn = []
        for page in range(self.pages.num_pages):
            blocks = [BlockId(page * pool.blocks_per_page + i) for i in range(pool.blocks_per_page)]
            states = [pool.state(block) for block in blocks]
            letters = [
                "ABC"[pool.holder(block) or 0] if state is BlockState.PRIVATE else LETTERS[state]
                for block, state in zip(blocks, states, strict=True)
            ]
            drawn.append("".join(letters) if self.pages.borrower(PageId(page)) == pool.group else "-")
        return "|".join(["", *drawn, ""])

    def check(self) -> None:
        """The states are whatever they are; counts, lists and pages must follow from them."""
        self.pages.check()
        for pool in self.pools:
            pool.check(bytearray(pool._states))


def make_lot(num_pages: int, *blocks_per_page: int, own_pages: int = 0) -> Lot:
    """`own_pages`: 0 is Jenga's order; what is tested of it holds whatever is shared."""
    layout = make_layout(num_pages, full_groups(*blocks_per_page), prod(blocks_per_page), 4)
    pages = PagePool(num_pages)
    return Lot(pages, [BlockPool(group, layout.page_bytes, pages, own_pages=own_pages) for group in layout.groups])


def free_all(pool: BlockPool, *blocks: int) -> None:
    for block in blocks:
        pool.free(BlockId(block))


def test_a_sequence_fills_its_own_page_before_it_takes_a_fresh_one() -> None:
    lot = make_lot(3, 3)
    assert lot.pool.grant(A, 2, frugal=False) == [0, 1]
    assert lot.pool.grant(B, 1, frugal=False) == [3]
    assert lot.pool.grant(A, 2, frugal=False) == [2, 6]
    assert lot.picture() == "|AAA|B..|A..|"
    lot.check()


def test_a_sequence_adopts_the_page_of_one_that_has_ended_before_it_uses_a_living_one_s() -> None:
    lot = make_lot(2, 3)
    lot.pool.grant(A, 2, frugal=False)
    lot.pool.grant(B, 2, frugal=False)
    lot.pool.publish(BlockId(0))
    free_all(lot.pool, 1)
    lot.pool.disown(A)
    assert lot.picture() == "|S..|BB.|"
    assert lot.pool.grant(C, 1, frugal=False) == [1]
    lot.check()
    free_all(lot.pool, 3, 4)
    assert lot.picture() == "|SC.|-|", "B's page held nothing but B"
    assert lot.pool.grant(C, 1, frugal=False) == [2], "the rest of the adopted page is C's own"


def test_free_blocks_on_a_living_sequence_s_page_are_the_last_choice_but_better_than_nothing() -> None:
    lot = make_lot(1, 3)
    lot.pool.grant(A, 1, frugal=False)
    assert lot.pool.grant(B, 1, frugal=False) == [1]
    assert lot.pool.grant(A, 1, frugal=False) == [2], "the page is still A's"
    assert lot.picture() == "|ABA|"
    lot.check()


def test_a_frugal_grant_leaves_fresh_pages_to_other_groups_as_long_as_it_can() -> None:
    lot = make_lot(3, 2)
    lot.pool.grant(A, 1, frugal=False)
    assert lot.pool.grant(B, 2, frugal=True) == [1, 2]
    assert lot.picture() == "|AB|B.|-|"
    lot.check()


def test_what_does_not_fill_a_page_shares_one_and_whole_pages_are_one_s_own() -> None:
    lot = make_lot(4, 3, own_pages=2)
    lot.pool.grant(A, 1, frugal=False)
    lot.pool.grant(B, 4, frugal=False)
    assert lot.picture() == "|AB.|BBB|-|-|"
    lot.pool.grant(A, 1, frugal=False)
    assert lot.pool.grant(C, 2, frugal=False) == [6, 7], "nothing is open, so a page of its own"
    assert lot.pool.grant(B, 1, frugal=False) == [8]
    assert lot.picture() == "|ABA|BBB|CCB|-|"
    lot.check()


def test_who_has_many_pages_keeps_the_rest_of_the_last_one_for_himself() -> None:
    lot = make_lot(5, 2, own_pages=2)
    lot.pool.grant(A, 1, frugal=False)
    lot.pool.grant(B, 4, frugal=False)
    assert lot.pool.grant(B, 1, frugal=False) == [6], "B has two whole pages"
    assert lot.pool.grant(C, 1, frugal=False) in ([1], [7])
    lot.check()


def test_copies_of_states_share_no_page_with_states_that_run() -> None:
    lot = make_lot(3, 3, own_pages=2)
    lot.pool.grant(A, 1, frugal=False)
    assert lot.pool.grant(checkpoints_of(SeqId(1)), 1, frugal=False) == [3]
    assert lot.pool.grant(checkpoints_of(SeqId(2)), 1, frugal=False) == [4]
    lot.pages.lend_many(lot.pool.group, 1)
    assert lot.pool.grant(checkpoints_of(SeqId(2)), 2, frugal=False) == [5, 1], "there is no other"


def test_a_page_goes_back_with_its_last_block() -> None:
    lot = make_lot(2, 2)
    lot.pool.grant(A, 3, frugal=False)
    free_all(lot.pool, 1)
    assert lot.picture() == "|A.|A.|"
    free_all(lot.pool, 0)
    assert lot.picture() == "|-|A.|"
    assert lot.pages.num_free == 1
    lot.check()


def test_every_page_of_a_sequence_that_neither_lent_nor_borrowed_goes_back_when_it_ends() -> None:
    lot = make_lot(6, 4)
    lot.pool.grant(B, 3, frugal=False)
    mine = lot.pool.grant(A, 14, frugal=False)
    free_all(lot.pool, *mine)
    lot.pool.disown(A)
    assert lot.pages.num_free == 5
    assert lot.picture() == "|BBB.|-|-|-|-|-|"
    lot.check()


def test_two_groups_exchange_whole_pages_and_cut_them_their_own_way() -> None:
    lot = make_lot(2, 1, 3)
    assert lot.pools[0].grant(A, 1, frugal=False) == [0]
    assert lot.pools[1].grant(A, 2, frugal=False) == [3, 4]
    assert (lot.picture(0), lot.picture(1)) == ("|A|-|", "|-|AA.|")
    free_all(lot.pools[0], 0)
    assert lot.pools[1].grant(A, 3, frugal=False) == [5, 0, 1]
    assert (lot.picture(0), lot.picture(1)) == ("|-|-|", "|AA.|AAA|")
    lot.check()


def test_a_block_lives_from_grant_to_publication_to_cache_and_back() -> None:
    lot = make_lot(1, 2)
    block = lot.pool.grant(A, 1, frugal=False)[0]
    assert lot.pool.holder(block) == A.of
    lot.pool.publish(block)
    assert (lot.picture(), lot.pool.holder(block)) == ("|S.|", None)
    lot.pool.unreference(block)
    assert lot.picture() == "|e.|"
    lot.pool.reference(block)
    assert lot.picture() == "|S.|"
    lot.pool.unreference(block)
    lot.pool.free(block)
    assert lot.picture() == "|-|"
    lot.check()


def test_a_quarantined_block_is_not_free_until_it_is_freed() -> None:
    lot = make_lot(1, 2)
    block = lot.pool.grant(A, 1, frugal=False)[0]
    lot.pool.quarantine(block)
    lot.pool.disown(A)
    assert lot.pool.grant(B, 1, frugal=False) == [1]
    assert lot.picture() == "|qB|"
    lot.pool.free(block)
    assert lot.picture() == "|.B|"
    lot.check()


def test_what_eviction_could_give_is_counted_apart_from_pages_it_could_empty() -> None:
    lot = make_lot(3, 2)
    for block in lot.pool.grant(A, 3, frugal=False):
        lot.pool.publish(block)
        lot.pool.unreference(block)
    lot.pool.grant(A, 1, frugal=False)
    assert lot.picture() == "|ee|eA|-|"
    assert lot.pool.num_unpinned_pages == 1, "page 0"
    assert lot.pool.num_obtainable == 1, "block 2; blocks 0 and 1 count with their page"
    lot.check()


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ("free", "block 1 of group 0 is freed while it is free"),
        ("publish", "block 1 of group 0 is FREE; to become SHARED it must be PRIVATE"),
        ("reference", "to become SHARED it must be EVICTABLE"),
        ("unreference", "to become EVICTABLE it must be SHARED"),
        ("quarantine", "to become QUARANTINED it must be PRIVATE"),
    ],
)
def test_a_turn_that_makes_no_sense_stops_loudly(turn: str, message: str) -> None:
    lot = make_lot(1, 2)
    lot.pool.grant(A, 1, frugal=False)
    with pytest.raises(InvariantError, match=message):
        getattr(lot.pool, turn)(BlockId(1))


def test_a_referenced_block_is_never_freed() -> None:
    lot = make_lot(1, 1)
    block = lot.pool.grant(A, 1, frugal=False)[0]
    lot.pool.publish(block)
    with pytest.raises(InvariantError, match="freed while it is shared"):
        lot.pool.free(block)


def test_a_grant_beyond_the_memory_is_our_bug() -> None:
    lot = make_lot(1, 2)
    with pytest.raises(InvariantError, match="asks for a page"):
        lot.pool.grant(A, 3, frugal=False)


def damage_counts(lot: Lot) -> None:
    lot.pool.counts[BlockState.PRIVATE] += 1


def damage_unpinned(lot: Lot) -> None:
    lot.pool.num_unpinned_pages += 1


def damage_pinned(lot: Lot) -> None:
    lot.pool._num_pinned[0] = 2


def damage_free_list(lot: Lot) -> None:
    lot.pool._open._of[A][PageId(0)].clear()


def damage_owner(lot: Lot) -> None:
    lot.pool._owner[0] = B


def damage_borrower(lot: Lot) -> None:
    lot.pages.give_back(PageId(0), lot.pool.group)


def damage_empty_page(lot: Lot) -> None:
    lot.pages.lend(lot.pool.group)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_counts, "by state"),
        (damage_unpinned, "0 unpinned pages, not"),
        (damage_pinned, "page 0 has 1 pinned blocks, not 2"),
        (damage_free_list, "free blocks"),
        (damage_owner, "page 0 of owner tail 1 is listed under tail 0"),
        (damage_borrower, "page 0 is not lent to the group but holds its blocks"),
        (damage_empty_page, "page 1 is lent but all its blocks are free"),
    ],
)
def test_check_finds_the_damage(damage: Callable[[Lot], None], message: str) -> None:
    lot = make_lot(2, 2)
    lot.pool.grant(A, 1, frugal=False)
    lot.check()
    damage(lot)
    with pytest.raises(InvariantError, match=message):
        lot.pool.check(bytearray(lot.pool._states))


def test_check_finds_a_state_that_its_users_do_not_explain() -> None:
    lot = make_lot(1, 2)
    lot.pool.grant(A, 1, frugal=False)
    expected = bytearray([BlockState.PRIVATE, BlockState.PRIVATE])
    with pytest.raises(InvariantError, match="block 1 is FREE; its users make it PRIVATE"):
        lot.pool.check(expected)
