"""Rules: what each habit of the memory is there for, seen by switching it off.

Four tokens per block. Everything else is equal: the same pages, the same calls in the same order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from tests.unit.kv.kit import Stage, make_layout, mixed_groups

from plait.core.ids import GroupId, SeqId
from plait.kv.blocks import BlockState
from plait.kv.cache import KVCache
from plait.kv.rules import ABLATIONS, MemoryRules, any_priority, rules_without

OTHER = GroupId(1)
FULL_ALONE = [("full", 0)]


def make(
    num_pages: int,
    kinds: list[tuple[str, int]],
    rules: MemoryRules,
    blocks_per_page: tuple[int, ...] = (1, 1),
    enable_prefix: bool = True,
) -> Stage:
    groups = mixed_groups(blocks_per_page, kinds, 4)
    page_layers = groups[0].num_layers * blocks_per_page[0]
    layout = make_layout(num_pages, groups, page_layers, 4)
    return Stage(KVCache(layout, groups, enable_prefix, rules=rules))


def letters(start: int, num_blocks: int) -> str:
    """Text of so many blocks, each of a letter of its own."""
    return "".join(chr(start + block) * 4 for block in range(num_blocks))


@dataclass(frozen=True)
class Pages:
    most: int
    """While all are there."""
    left: int
    """When the short ones have ended."""


def pages_of_one_long_answer(rules: MemoryRules, at_once: int) -> Pages:
    """A long sequence grows by `at_once` blocks while three short ones come each time; eight blocks in all."""
    stage = make(64, FULL_ALONE, rules, (4,), enable_prefix=False)
    long = stage.admit("a")
    short = []
    for turn in range(8 // at_once):
        assert stage.reserve(long, 4 * at_once * (turn + 1)) is not None
        short += [stage.admit("bbbb") for _ in range(3)]
    most = 64 - stage.kv.usage().free_pages
    stage.release(*short)
    stage.kv.check()
    assert len(stage.table(long)) == 8
    return Pages(most, 64 - stage.kv.usage().free_pages)


def test_owners_keep_what_dies_together_on_pages_of_its_own() -> None:
    """Eight blocks, four on a page: two pages and no waste, instead of a page for every block and three quarters of
    it wasted. As in Jenga, where everybody has pages of his own.
    """
    jenga = MemoryRules(own_pages=0)
    assert pages_of_one_long_answer(jenga, 1) == Pages(most=2 + 24, left=2)
    assert pages_of_one_long_answer(rules_without(["request-awareness"]), 1) == Pages(most=8, left=8)


def test_rests_of_pages_are_shared_and_whole_pages_are_one_s_own() -> None:
    """What comes in pages is kept together; what does not costs no page of its own while others have room."""
    assert pages_of_one_long_answer(MemoryRules(), 4) == Pages(most=4, left=2)
    assert pages_of_one_long_answer(MemoryRules(), 1) == Pages(most=8, left=8)


@pytest.mark.parametrize("k", [2, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_no_more_than_a_page_of_a_group_is_idle_while_sequences_only_come(k: int, seed: int) -> None:
    """Whatever they need, in blocks: the waste of the memory does not grow with how many there are."""
    dice = random.Random(seed)
    stage = make(400, FULL_ALONE, MemoryRules(), (k,), enable_prefix=False)
    seqs: list[SeqId] = []
    for _ in range(100):
        if seqs and dice.random() < 0.5:
            assert stage.reserve(dice.choice(seqs), 4 * dice.randint(1, 3 * k)) is not None
        else:
            seqs.append(stage.admit(letters(200, dice.randint(1, 2 * k))))
        (group,) = stage.kv.explain().groups
        assert group.blocks.free < k
    stage.kv.check()


def test_when_a_lonely_sequence_ends_every_page_goes_back() -> None:
    """Of a sequence that never lent or borrowed, with caching off; whoever owns the pages."""
    for rules in (MemoryRules(), rules_without(["request-awareness"])):
        stage = make(8, FULL_ALONE, rules, (4,), enable_prefix=False)
        stage.release(stage.run("aaaabbbbccccddddee"))
        assert stage.kv.usage().free_pages == 8


def hit_after_half_went(rules: MemoryRules) -> int:
    """Blocks of a prompt that are hit after half of its memory, in two groups, was given to another. The window sees
    all of it.
    """
    stage = make(64, [("full", 0), ("window", 1000)], rules)
    text = letters(200, 32)
    stage.cache(text)
    stage.admit(letters(1000, 16))
    stage.kv.check()
    assert stage.kv.usage().used_bytes * 2 == stage.kv.usage().total_bytes
    return stage.cached_tokens(text) // 4


def test_alignment_makes_groups_drop_the_same_tokens() -> None:
    assert hit_after_half_went(MemoryRules()) == 16
    assert hit_after_half_went(rules_without(["alignment"])) < 12


def hits_beside_a_window(rules: MemoryRules) -> tuple[int, int]:
    """A short prompt comes and goes while a long one, whose first tokens left the window, is still answered. When that
    has ended too, memory for four blocks is short. Tokens hit of the short one and of the long one.
    """
    stage = make(26, [("full", 0), ("window", 5)], rules)
    long = stage.admit(letters(200, 10))
    for _ in range(10):
        stage.now_s += 1
        stage.finish(stage.submit(stage.chunk(long, 4)))
    stage.cache("aaaabbbb")
    stage.now_s += 1
    stage.release(long)
    assert stage.kv.usage().free_pages == 2
    stage.now_s += 1
    stage.admit("x" * 12)
    stage.kv.check()
    return stage.cached_tokens("aaaabbbb"), stage.cached_tokens(letters(200, 10))


def test_balance_gives_up_what_left_a_window_before_what_can_still_be_hit() -> None:
    assert hits_beside_a_window(MemoryRules()) == (8, 40)
    assert hits_beside_a_window(rules_without(["balance"])) == (0, 40)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_a_tail_is_what_ends_a_hit_inside_a_block(ablation: str) -> None:
    stage = make(8, FULL_ALONE, rules_without([ablation]), (1,))
    stage.cache("aaaabbbb")
    hit = stage.hit("aaaabbcc")
    assert hit.num_reused == (4 if ablation == "tails" else 6)


def test_without_tails_choices_of_one_request_share_whole_blocks_alone() -> None:
    for rules, reused in ((MemoryRules(), 6), (rules_without(["tails"]), 4)):
        stage = make(8, FULL_ALONE, rules, (1,))
        first = stage.run("aaaabb")
        hit = stage.kv.beside(stage.hit("aaaabbc"), first, 6)
        assert hit.num_reused == reused


@pytest.mark.parametrize("ablations", [[], ["request-awareness"], ["alignment"], ["balance"], list(ABLATIONS)])
def test_nothing_is_lost_or_counted_twice_without_them(ablations: list[str]) -> None:
    stage = make(24, [("full", 0), ("window", 6), ("state", 0)], rules_without(ablations), (2, 3, 1))
    for turn in range(12):
        stage.now_s += 1
        seqs = [stage.admit(letters(100 * (turn % 4 + who % 3 + 1), 1 + (turn + who) % 5)) for who in range(3)]
        for seq in seqs:
            stage.finish(stage.submit(stage.chunk(seq)))
        stage.kv.check()
        stage.release(*seqs)
        stage.kv.check()
    stage.kv.reset_prefix_index()
    stage.kv.check()
    assert stage.kv.usage().free_pages == 24
    assert all(pool.counts[BlockState.FREE] == 0 for pool in stage.kv._pools)


def test_chance_is_the_same_for_the_same_piece_and_spreads_around_the_prefix() -> None:
    drawn = [any_priority(number, 1000) for number in range(1, 400)]
    assert drawn == [any_priority(number, 1000) for number in range(1, 400)]
    assert 0 <= min(drawn) < 100
    assert 1900 < max(drawn) < 2000
    assert 950 < sum(drawn) / len(drawn) < 1050
