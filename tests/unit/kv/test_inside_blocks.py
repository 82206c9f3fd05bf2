"""Hits that end at a checkpoint inside a block: the state as it was there, and so much of somebody's block.

Four tokens per block, one block of each kind per page. Group 0 keeps every token, group 1 a state.
"""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import ROOT, Stage, make_layout, mixed_groups, words
from tests.unit.kv.test_groups import FULL, OTHER, make, state_stage, with_snapshot
from tests.unit.kv.test_images import Gallery

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, SeqId, StepId
from plait.core.step import Chunk, Move
from plait.kv.blocks import BlockState
from plait.kv.cache import Hit, KVCache
from plait.kv.hit import ImageSpan
from plait.kv.rules import rules_without


def cached(stage: Stage, text: str, length: int) -> BlockId:
    """Somebody said `text` in one step, left a copy of the state behind `length` tokens, and went. Its block."""
    stage.now_s += 1.0
    seq = stage.admit(text)
    step, block = with_snapshot(stage, seq, length, len(text))
    stage.finish(step)
    stage.release(seq)
    stage.kv.check()
    return BlockId(block)


def opened(stage: Stage, text: str) -> tuple[SeqId, Hit]:
    seq, hit = SeqId(50), stage.hit(text)
    stage.kv.open(seq, ROOT, hit, stage.now_s)
    stage.texts[seq], stage.done[seq] = words(text), hit.num_reused
    return seq, hit


def test_a_prompt_shorter_than_a_block_goes_on_from_its_end() -> None:
    stage = state_stage()
    state = cached(stage, "aabcd", 3)
    hit = stage.hit("aabb")
    assert hit.tail is not None
    assert (hit.num_tokens, hit.num_reused, hit.blocks) == (0, 3, ((), ()))
    seq, _ = opened(stage, "aabb")
    grants = stage.reserve(seq, 4)
    assert grants is not None
    (own,), (running,) = stage.table(seq), stage.table(seq, OTHER)
    source = hit.tail.blocks[FULL]
    assert grants.moves == (Move(OTHER, state, 0, running, 0, 1), Move(FULL, source, 0, own, 0, 3))
    stage.kv.check()
    step = stage.submit(stage.chunk(seq), moves=grants.moves)
    stage.kv.check()
    assert stage.kv._pools[OTHER].state(state) is BlockState.SHARED, "until the copy is made"
    stage.kv.commit(step, seq, words("aabb"), stage.now_s)
    stage.kv.collected(step)
    stage.kv.check()
    assert stage.kv._pools[OTHER].state(state) is BlockState.EVICTABLE
    assert stage.table(seq) != [source]


def test_the_longest_of_several_is_taken_and_nothing_that_differs() -> None:
    stage = state_stage(30)
    seq = stage.admit("aaaabbbbcc")
    for length, num_tokens in ((4, 4), (6, 2), (7, 4)):
        step, _ = with_snapshot(stage, seq, length, num_tokens)
        stage.finish(step)
    stage.release(seq)
    found = {text: stage.hit(text).num_reused for text in ("aaaabbbx", "aaaabbxx", "aaaabxxx", "aaaxxxxx")}
    assert found == {"aaaabbbx": 7, "aaaabbxx": 6, "aaaabxxx": 4, "aaaxxxxx": 0}
    assert stage.hit("aaaabbbx").without_tail().num_tokens == 4
    assert stage.hit("aaaabbb").num_reused == 6, "one token is left to compute"


def test_without_a_block_that_begins_so_there_is_no_hit() -> None:
    """The block in which the copy was made is not full, so nobody else may look at its tokens."""
    stage = state_stage()
    cached(stage, "aaab", 3)
    assert stage.hit("aaac").num_reused == 3
    stage = state_stage()
    cached(stage, "aab", 2)
    assert stage.hit("aac").num_reused == 0
    cached(stage, "aazz", 4)  # another's block does as well
    assert stage.hit("aac").num_reused == 2


def test_a_node_takes_what_lies_behind_it_along() -> None:
    stage = state_stage()
    state = cached(stage, "aaaabbbb", 6)
    assert stage.hit("aaaabbxx").num_reused == 6
    assert stage.kv.reset_prefix_index() == 3
    assert stage.kv._pools[OTHER].state(state) is BlockState.FREE
    stage.kv.check()
    assert stage.kv.explain().index.num_roots == 0


def test_what_was_looked_up_before_an_eviction_is_stale() -> None:
    stage = state_stage()
    state = cached(stage, "aabcd", 3)
    hit = stage.hit("aabb")
    piece = stage.kv._index.piece(OTHER, state)
    assert piece is not None
    stage.kv._index.drop(piece)
    stage.kv.check()
    with pytest.raises(InvariantError, match="stale hit"):
        stage.kv.open(SeqId(9), ROOT, hit, stage.now_s)


def test_a_state_is_moved_to_nobody_who_has_said_less_or_more() -> None:
    stage = state_stage()
    cached(stage, "aabcd", 3)
    seq, _ = opened(stage, "aabb")
    grants = stage.reserve(seq, 4)
    assert grants is not None
    with pytest.raises(InvariantError, match="writes slots"):
        stage.submit(Chunk(seq, 2, 2, (1, 2)), moves=grants.moves)
    other = stage.admit("xyz")
    (wrong,) = stage.table(other, OTHER)
    with pytest.raises(InvariantError, match="the state behind 3 tokens"):
        stage.submit(stage.chunk(other), moves=[Move(OTHER, grants.moves[0].src_block, 0, wrong, 0, 1)])


def test_states_alone_need_no_block_to_copy_from() -> None:
    groups = mixed_groups((1,), [("state", 0)], 4)
    stage = Stage(KVCache(make_layout(8, groups, 1, 4), groups, node_tokens=4))
    assert stage.kv.checkpoint_tokens == 1
    seq = stage.admit("aab")
    assert stage.kv.checkpoint(seq, 2, 0.0) is not None
    stage.finish(stage.submit(stage.chunk(seq)))
    assert stage.hit("aab").num_reused == 0, "no step made the copy"
    stage.release(seq)
    stage.kv.check()
    step, block = _with_state(stage, "aaaaab", 5)
    stage.finish(step)
    hit = stage.hit("aaaaac")
    assert (hit.num_tokens, hit.num_reused, hit.without_tail().num_tokens) == (4, 5, 0)
    follower, _ = opened(stage, "aaaaac")
    grants = stage.reserve(follower, 6)
    assert grants is not None
    assert grants.moves == (Move(GroupId(0), block, 0, stage.table(follower)[0], 0, 1),)
    done = stage.submit(stage.chunk(follower), moves=grants.moves)
    stage.kv.check()
    stage.kv.commit(done, follower, words("ac"), stage.now_s)
    stage.kv.collected(done)
    stage.kv.check()


def _with_state(stage: Stage, text: str, length: int) -> tuple[StepId, BlockId]:
    seq = stage.admit(text)
    step, block = with_snapshot(stage, seq, length, len(text))
    return step, BlockId(block)


def test_a_window_must_have_what_is_copied_too() -> None:
    groups = mixed_groups((1, 1, 1), [("full", 0), ("window", 5), ("state", 0)], 4)
    stage = Stage(KVCache(make_layout(30, groups, 1, 4), groups))
    step, _ = _with_state(stage, "aaaabbbbcc", 6)
    stage.finish(step)
    assert stage.hit("aaaabbxx").num_reused == 6
    node = next(node for node in stage.kv._index.nodes() if node.length == 8)
    seq = next(iter(stage.texts))
    stage.release(seq)
    stage.kv._index.drop(node.pieces[1])
    stage.kv.check()
    assert stage.hit("aaaabbxx").num_reused == 0


def test_without_tails_no_hit_ends_inside_a_block() -> None:
    stage = make(12, ("state", 0), rules=rules_without(["tails"]))
    cached(stage, "aabcd", 3)
    assert stage.hit("aabb").num_reused == 0


def test_a_hit_without_its_tail_asks_for_the_images_that_the_tail_would_have_consumed() -> None:
    stage = Gallery("embedding", 30)
    image = ImageSpan(b"cat", num_rows=6, end=6)
    stage.release(stage.show("abcdefghij", image))
    stage.kv.reset_prefix_index()
    stage.release(stage.show("abcdefghij", image))
    root = next(iter(stage.kv._index.roots())).root
    hit = stage.kv.with_images(stage.kv.lookup(words("abcdefgxyz"), root), root, [image])
    assert (hit.num_tokens, hit.num_reused, hit.missing) == (4, 7, (0, 0))
    shorter = hit.without_tail()
    assert (shorter.num_reused, len(shorter.blocks[1]) + shorter.missing[1]) == (4, 2)
    stage.kv.open(SeqId(70), root, shorter, stage.now_s)
    assert stage.kv.reserve(SeqId(70), 10, stage.now_s) is not None
    stage.kv.check()
