"""Pages of one's own: a fixed split of the memory, where one group's shortage is nobody else's business."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.kv.kit import Stage, make_layout, mixed_groups

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.kv.cache import KVCache
from plait.kv.pages import PagePool
from plait.kv.rules import rules_without
from plait.model.cache_layout import least_pages, own_pages

FULL, WINDOW = GroupId(0), GroupId(1)


def make(*own: int, blocks_per_page: tuple[int, int] = (1, 1), prefix: bool = True) -> Stage:
    groups = mixed_groups(blocks_per_page, [("full", 0), ("window", 5)], 4)
    layout = make_layout(sum(own), groups, groups[0].num_layers * blocks_per_page[0], 4)
    return Stage(KVCache(replace(layout, own_pages=own), groups, prefix, rules=rules_without(["tails"])))


def test_a_group_lends_from_its_own_pages_alone() -> None:
    pages = PagePool(5, (2, 3))
    assert [pages.lend(FULL), pages.lend(FULL)] == [0, 1]
    assert (pages.num_free_for(FULL), pages.num_free_for(WINDOW), pages.num_free) == (0, 3, 3)
    with pytest.raises(InvariantError, match="group 0 asks for a page"):
        pages.lend(FULL)
    assert pages.lend_many(WINDOW, 3) == [2, 3, 4]
    pages.give_back_many([3, 2], WINDOW)  # type: ignore[list-item]
    pages.check()
    assert pages.lend(WINDOW) == 2


def test_pages_that_are_nobody_s_are_our_bug() -> None:
    with pytest.raises(InvariantError, match=r"groups own \[2, 2\] pages of 5"):
        PagePool(5, (2, 2))


def test_a_full_part_is_a_shortage_though_another_part_is_empty() -> None:
    stage = make(3, 40, prefix=False)
    assert stage.kv.capacity_tokens == 12
    seq = stage.open("a" * 16)
    assert stage.reserve(seq, 16) is None
    assert stage.reserve(seq, 12) is not None
    stage.kv.check()
    shared = Stage(
        KVCache(replace(stage.kv._layout, own_pages=()), mixed_groups((1, 1), [("full", 0), ("window", 5)], 4))
    )
    assert shared.kv.capacity_tokens > 100, "the same pages, lent to whoever needs them"


def test_what_is_evicted_is_of_the_group_that_is_short() -> None:
    """The other group's cache stays, though all of it is older."""
    stage = make(4, 9)
    stage.cache("aaaabbbb")
    before = stage.kv.usage().groups[WINDOW].evictable
    assert before == 2
    stage.now_s += 1
    seq = stage.admit("x" * 12)
    stage.kv.check()
    usage = stage.kv.usage()
    assert usage.groups[FULL].evictable == 1
    assert usage.groups[WINDOW].evictable == 1, "with a node goes its piece; the other stays"
    assert len(stage.table(seq)) == 3


@given(seed=st.integers(0, 10_000), own=st.tuples(st.integers(4, 12), st.integers(3, 12)))
def test_nothing_is_lost_whatever_comes_and_goes(seed: int, own: tuple[int, int]) -> None:
    dice = random.Random(seed)
    stage = make(*own, blocks_per_page=dice.choice([(1, 1), (1, 2), (3, 1), (2, 3)]))
    running = []
    for _ in range(25):
        stage.now_s += 1
        if running and dice.random() < 0.5:
            stage.release(running.pop(dice.randrange(len(running))))
        seq = stage.open("".join(dice.choice("ab") * 4 for _ in range(dice.randint(1, 6))))
        room = stage.kv.room_behind(stage.kv.no_hit())
        grants = stage.reserve(seq, len(stage.texts[seq]))
        assert grants is not None or room < len(stage.texts[seq])
        if grants is None:
            stage.release(seq)
        else:
            stage.finish(stage.submit(stage.chunk(seq), moves=grants.moves))
            running.append(seq)
        stage.kv.check()
    stage.release(*running)
    stage.kv.reset_prefix_index()
    stage.kv.check()
    assert stage.kv.usage().free_pages == sum(own)


shares = st.lists(st.integers(1, 1000), min_size=1, max_size=6).map(
    lambda weights: [Fraction(weight, sum(weights)) for weight in weights]
)


SMALL_SHARES = [Fraction(1, 18)] * 4 + [Fraction(7, 9)]
"""Of 13 pages, four groups have less than one each: the fifth gives up a whole one of its ten."""


@given(parts=shares, num_pages=st.integers(6, 5000))
@example(parts=SMALL_SHARES, num_pages=13)
def test_every_page_is_somebody_s_and_everybody_has_one(parts: list[Fraction], num_pages: int) -> None:
    pages = own_pages(num_pages, parts)
    assert sum(pages) == num_pages
    assert min(pages) >= 1
    # What groups have beyond their shares is one page at most, and what they lack are the pages of those that would
    # have none.
    assert all(count < num_pages * share + 1 or count == 1 for count, share in zip(pages, parts, strict=True))
    lacking = sum(max(0, int(num_pages * share) - count) for count, share in zip(pages, parts, strict=True))
    assert lacking <= sum(num_pages * share < 1 for share in parts)


@given(parts=shares, data=st.data())
def test_the_least_memory_of_a_split_holds_what_every_group_needs(parts: list[Fraction], data: st.DataObject) -> None:
    needed = data.draw(st.lists(st.integers(0, 50), min_size=len(parts), max_size=len(parts)))
    least = least_pages(needed, parts)
    assert all(have >= count for have, count in zip(own_pages(least, parts), needed, strict=True))


def test_who_needs_no_page_has_one_beside_those_that_are_needed() -> None:
    assert own_pages(13, SMALL_SHARES) == [1, 1, 1, 1, 9]
    assert least_pages([0, 0, 0, 0, 10], SMALL_SHARES) == 14
