"""Trunks: prefixes that many share, on pages that nothing else keeps from coming back.

Four tokens per block, four blocks of group 1 on a page.
"""

from __future__ import annotations

from tests.unit.kv.kit import Stage, full_groups, make_layout

from plait.core.ids import GroupId
from plait.kv.cache import KVCache
from plait.kv.owners import Lifetime

SMALL = GroupId(1)
HEAD = "aaaabbbbcccc"


def make(num_pages: int = 24) -> Stage:
    groups = full_groups(1, 4)
    return Stage(KVCache(make_layout(num_pages, groups, 4, 4), groups))


def test_a_prefix_becomes_a_trunk_at_its_second_hit() -> None:
    stage = make()
    stage.cache(HEAD + "d")
    pool = stage.kv._pools[SMALL]
    head = stage.hit(HEAD + "e").blocks[SMALL]
    page = pool.page_of(head[0])
    stage.release(stage.run(HEAD + "e"))
    assert pool._owner[page] is None, "once may be chance"
    stage.release(stage.run(HEAD + "f"))
    owner = pool._owner[page]
    assert owner is not None
    assert owner.lifetime is Lifetime.TRUNK
    stage.kv.check()


def test_nobody_else_s_blocks_go_on_a_trunk_s_page_while_there_are_others() -> None:
    stage = make()
    stage.cache(HEAD + "d")
    for letter in "ef":
        stage.release(stage.run(HEAD + letter))
    pool = stage.kv._pools[SMALL]
    trunk = {pool.page_of(block) for block in stage.hit(HEAD + "g").blocks[SMALL]}
    other = stage.admit("xxxx" * 3)
    assert not trunk & {pool.page_of(block) for block in stage.table(other, SMALL)}
    stage.kv.check()


def test_a_trunk_that_is_evicted_leaves_nothing_behind() -> None:
    stage = make()
    stage.cache(HEAD + "d")
    for letter in "ef":
        stage.release(stage.run(HEAD + letter))
    stage.kv.reset_prefix_index()
    stage.kv.check()
    pool = stage.kv._pools[SMALL]
    assert stage.kv.usage().free_pages == 24
    assert not pool._owned
    assert not pool._open
