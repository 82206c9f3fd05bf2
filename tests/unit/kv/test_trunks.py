"""Trunks: prefixes that many share, on pages of their own but for the rests.

Four tokens per block, four blocks of group 1 on a page.
"""

from __future__ import annotations

import string

import pytest
from tests.unit.kv.kit import Stage, full_groups, make_layout, mixed_groups

from plait.core.ids import GroupId
from plait.kv.cache import KVCache
from plait.kv.owners import Lifetime
from plait.kv.rules import MemoryRules, rules_without

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


def test_what_fills_a_page_does_not_go_on_a_trunk_s() -> None:
    stage = make()
    stage.cache(HEAD + "d")
    for letter in "ef":
        stage.release(stage.run(HEAD + letter))
    pool = stage.kv._pools[SMALL]
    trunk = {pool.page_of(block) for block in stage.hit(HEAD + "g").blocks[SMALL]}
    other = stage.admit("xxxx" * 4)
    assert not trunk & {pool.page_of(block) for block in stage.table(other, SMALL)}
    stage.kv.check()


def test_the_rest_of_a_trunk_s_page_is_lent_before_a_fresh_page_and_after_rests_of_tails() -> None:
    stage = make()
    stage.cache(HEAD + "d")
    for letter in "ef":
        stage.release(stage.run(HEAD + letter))
    pool = stage.kv._pools[SMALL]
    trunk = pool.page_of(stage.hit(HEAD + "g").blocks[SMALL][0])
    owner = pool._owner[trunk]
    first, second = stage.admit("ww"), stage.admit("xx")
    places = [pool.page_of(stage.table(seq, SMALL)[0]) for seq in (first, second)]
    assert places[0] == trunk
    stage.release(first)
    assert pool.page_of(stage.table(stage.admit("yy"), SMALL)[0]) == places[1], "the like comes first"
    assert pool._owner[trunk] == owner, "it is a trunk's as before"
    stage.kv.check()


@pytest.mark.parametrize("rules", [MemoryRules(), rules_without(["request-awareness"])], ids=["rules", "no owners"])
def test_trunks_of_few_blocks_keep_no_pages_from_others(rules: MemoryRules) -> None:
    """24 stems of four blocks, and 16 blocks on a page: asked for one after the other, each becomes a trunk."""
    groups = full_groups(1, 16)
    stage = Stage(KVCache(make_layout(200, groups, 16, 4), groups, rules=rules))
    for one in string.ascii_letters[:24]:
        for letter in "123":
            stage.cache(one * 16 + letter)
    for pool in stage.kv._pools:
        assert pool.num_free < 2 * pool.blocks_per_page
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


def windowed(kept_fraction: float) -> Stage:
    """A window of 9 tokens beside full attention, one block on a page, and a trunk that somebody has begun with and
    left far behind, beside somebody else.
    """
    groups = mixed_groups((1, 1), [("full", 0), ("window", 9)], 4)
    rules = MemoryRules(kept_fraction=kept_fraction)
    stage = Stage(KVCache(make_layout(40, groups, groups[0].num_layers, 4), groups, rules=rules))
    for letter in "def":
        stage.cache(HEAD + letter)
    stage.run("y")
    stage.run(HEAD + "g" + "hijklmnopqrstuvw")
    return stage


def kept(stage: Stage) -> int:
    """Blocks that trunks keep."""
    return sum(bool(piece.keepers) for node in stage.kv._index.nodes() for piece in node.pieces.values())


def take_all(stage: Stage) -> None:
    """Somebody takes all that is to be had."""
    other = stage.open("xxxx" * 40)
    grown = 0
    while stage.reserve(other, grown + 4) is not None:
        grown += 4


@pytest.mark.parametrize(("kept_fraction", "hit"), [(0.5, 12), (0.0, 4)])
def test_a_trunk_in_use_keeps_the_window_before_its_end(kept_fraction: float, hit: int) -> None:
    """All else that is cached goes to others first, and then nothing more is to be had."""
    stage = windowed(kept_fraction)
    assert stage.cached_tokens(HEAD + "z") == 12
    take_all(stage)
    assert stage.cached_tokens(HEAD + "z") == hit
    stage.kv.check()


def test_nothing_is_kept_that_keeps_a_lonely_sequence_from_its_memory() -> None:
    stage = windowed(0.5)
    first, user = sorted(stage.texts)[-2:]
    stage.release(first)
    assert not kept(stage)
    stage.release(user)
    stage.kv.check()
    assert stage.kv.usage().used_bytes == 0


def test_trunks_that_nobody_uses_keep_nothing() -> None:
    stage = windowed(0.5)
    stage.run("v")
    assert kept(stage)
    stage.release(sorted(stage.texts)[-2])
    assert not kept(stage)
    stage.kv.check()


def test_what_two_trunks_have_in_common_stays_when_the_users_of_one_leave() -> None:
    groups = mixed_groups((1, 1), [("full", 0), ("window", 9)], 4)
    rules = MemoryRules(kept_fraction=0.5)
    stage = Stage(KVCache(make_layout(60, groups, groups[0].num_layers, 4), groups, rules=rules))
    stems = ["aaaabbbbcccc", "aaaabbbbdddd"]
    for stem in stems:
        for letter in "def":
            stage.cache(stem + letter)
    stage.run("y")
    first, _ = (stage.run(stem + letter + "hijklmnopqrstuvw") for stem, letter in zip(stems, "gG", strict=True))
    num_kept = kept(stage)
    stage.release(first)
    assert kept(stage) == num_kept - 1, "of the one stem its own block alone, behind the fork"
    take_all(stage)
    assert stage.cached_tokens(stems[1] + "z") == 12
    stage.kv.check()
    stage.release(sorted(stage.texts)[-2])
    assert not kept(stage)
    stage.kv.check()


def test_a_prompt_that_was_started_goes_on_before_trunks_keep_anything() -> None:
    """The memory that its windows were promised when it began is what the trunk kept afterwards."""
    stage = windowed(0.5)
    prompt = stage.open("p" * 12)
    assert stage.kv.reserve(prompt, 12, stage.now_s, up_to=4) is not None
    take_all(stage)
    assert kept(stage)
    for _ in range(2):
        end = stage.kv.extent(prompt, 12, stage.kv.num_slots(prompt) + 4)
        assert stage.kv.reserve(prompt, 12, stage.now_s, up_to=end) is not None
    assert stage.kv.num_slots(prompt) == 12
    assert not kept(stage)
    stage.kv.check()


def test_an_answer_stops_before_trunks_in_use_give_up_what_they_keep() -> None:
    stage = windowed(0.5)
    answer = stage.run("p" * 4)
    take_all(stage)
    num_kept = kept(stage)
    assert num_kept
    assert stage.kv.extent(answer, 8, 8) == 4
    assert stage.reserve(answer, 8) is None
    assert kept(stage) == num_kept
    stage.kv.check()
