"""Tails: the beginning of a published block is copied once, and its source is kept as long as somebody needs it."""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import ROOT, Stage, make_kv, words

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, SeqId
from plait.core.step import Move
from plait.kv.cache import KVCache
from plait.kv.tables import Copy, SeqTable


def opened(stage: Stage, text: str, number: int = 50) -> SeqId:
    """A sequence that was opened with everything the index has of it."""
    seq, tokens = SeqId(number), words(text)
    hit = stage.kv.lookup(tokens, ROOT)
    assert hit.tail is not None
    stage.kv.open(seq, ROOT, hit, stage.now_s)
    stage.texts[seq], stage.done[seq] = tokens, hit.num_reused
    return seq


def table_of(kv: KVCache, seq: SeqId) -> SeqTable:
    return kv._tables[seq]


def moves_of(stage: Stage, seq: SeqId, num_tokens: int) -> tuple[Move, ...]:
    grants = stage.reserve(seq, num_tokens)
    assert grants is not None
    return grants.moves


def test_the_copy_comes_with_the_block_it_goes_into_and_once() -> None:
    stage = Stage(make_kv(8))
    source = stage.cache("aaaabbbb")[1]
    seq = opened(stage, "aaaabbxxyy")
    assert moves_of(stage, seq, 4) == (), "only the hit's own block is there"
    assert moves_of(stage, seq, 6) == (Move(GroupId(0), source, 0, stage.table(seq)[1], 0, 2),)
    assert moves_of(stage, seq, 10) == ()
    stage.kv.check()


def test_every_group_copies_its_own_block() -> None:
    stage = Stage(make_kv(12, 1, 2))
    sources = stage.cache("aaaabbbb")[1], 0
    seq = opened(stage, "aaaabbxx")
    moves = moves_of(stage, seq, 8)
    assert [(one.group, one.dst_block) for one in moves] == [
        (group, stage.table(seq, GroupId(group))[1]) for group in (0, 1)
    ]
    assert moves[0].src_block == sources[0]
    step = stage.submit(stage.chunk(seq), moves=moves)
    stage.kv.check()
    stage.kv.commit(step, seq, stage.texts[seq][4:], stage.now_s)
    stage.kv.collected(step)
    stage.kv.check()
    assert stage.cached_tokens("aaaabbxx") == 8


def test_the_source_is_kept_from_open_to_the_end_of_the_step_that_copies() -> None:
    stage = Stage(make_kv(4))
    stage.cache("aaaa")
    seq = opened(stage, "aaxx")
    assert stage.kv.reset_prefix_index() == 0
    moves = moves_of(stage, seq, 4)
    assert stage.kv.reset_prefix_index() == 0
    step = stage.submit(stage.chunk(seq), moves=moves)
    assert table_of(stage.kv, seq).copy is None, "the step references it now"
    assert stage.kv.reset_prefix_index() == 0
    stage.kv.check()
    stage.kv.commit(step, seq, stage.texts[seq], stage.now_s)
    stage.kv.collected(step)
    assert stage.kv.reset_prefix_index() == 1
    stage.kv.check()


@pytest.mark.parametrize("is_reserved", [False, True])
def test_who_leaves_before_the_copy_lets_the_source_go(is_reserved: bool) -> None:
    stage = Stage(make_kv(4))
    stage.cache("aaaa")
    seq = opened(stage, "aaxx")
    if is_reserved:
        stage.reserve(seq, 4)
    stage.release(seq)
    stage.kv.check()
    assert stage.kv.reset_prefix_index() == 1
    assert stage.kv.usage().used_bytes == 0


def test_a_cancelled_copy_lets_everything_go() -> None:
    stage = Stage(make_kv(4))
    stage.cache("aaaa")
    seq = opened(stage, "aaxx")
    step = stage.submit(stage.chunk(seq), moves=moves_of(stage, seq, 4))
    stage.release(seq)
    assert stage.kv.num_quarantined == 1
    assert stage.kv.reset_prefix_index() == 0
    stage.kv.collected(step)
    assert stage.kv.num_quarantined == 0
    assert stage.kv.reset_prefix_index() == 1
    assert stage.kv.usage().used_bytes == 0
    stage.kv.check()


def test_the_source_is_no_room_for_the_copy() -> None:
    stage = Stage(make_kv(3))
    stage.cache("aaaabbbb")
    hit = stage.hit("aaaabbxx")
    assert (hit.num_tokens, hit.num_reused) == (4, 6)
    assert stage.kv.room_behind(hit) == 4
    assert stage.kv.room_behind(hit.without_tail()) == 8
    assert hit.without_tail().num_reused == 4


def test_a_tail_that_was_evicted_meanwhile_is_stale() -> None:
    stage = Stage(make_kv(3))
    stage.cache("aaaabbbb")
    hit = stage.hit("aaaabbxx")
    keep = stage.admit("aaaacccc")
    stage.finish(stage.submit(stage.chunk(keep)))
    assert stage.cached_tokens("aaaabbbb") == 8
    stage.admit("zz")
    assert stage.cached_tokens("aaaabbbb") == 4
    with pytest.raises(InvariantError, match="sequence 50 opens a stale hit with a tail of 2; look up again"):
        stage.kv.open(SeqId(50), ROOT, hit, stage.now_s)
    stage.kv.check()


def test_copied_tokens_count_as_hits() -> None:
    stage = Stage(make_kv(8))
    stage.cache("aaaabbbb")
    opened(stage, "aaaabbxx")
    index = stage.kv.explain().index
    assert (index.asked_tokens, index.hit_tokens) == (16, 6)


def test_a_copy_that_went_astray_is_found() -> None:
    stage = Stage(make_kv(8))
    stage.cache("aaaabbbb")
    seq = opened(stage, "aaaabbxx")
    table = table_of(stage.kv, seq)
    good = table.copy
    assert good is not None
    table.copy = None
    with pytest.raises(InvariantError, match="has 2 references, its users make 1"):
        stage.kv.check()
    parent = good.source.parent
    assert parent is not None
    table.copy = Copy(parent, 2)
    with pytest.raises(InvariantError, match="references, its users make"):
        stage.kv.check()
    table.copy = good
    stage.kv.check()
    table.num_hit_blocks = 0
    with pytest.raises(
        InvariantError, match=rf"sequence 50 has still to copy block \({BlockId(good.source.blocks[0])},"
    ):
        stage.kv.check()
