"""The hazards of running ahead, by name (H1 to H6, H9): what must not happen while a step is in flight.

Letters are tokens, four to a block, one block to a page; an upper-case block is one nobody else has.
"""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import FULL, Stage, make_kv

from plait.core.errors import InvariantError
from plait.core.ids import BlockId
from plait.core.step import Move


def move(src: BlockId, dst: BlockId, num_tokens: int, src_slot: int = 0, dst_slot: int = 0) -> Move:
    return Move(FULL, src, src_slot, dst, dst_slot, num_tokens)


def test_h1_blocks_of_a_released_sequence_are_not_granted_while_a_step_still_reads_them() -> None:
    stage = Stage(make_kv(2))
    old = stage.admit("aaaabbbb")
    step = stage.submit(stage.chunk(old))
    stage.release(old)
    assert stage.kv.usage().groups[0].quarantined == 2
    new = stage.open("cccc")
    assert stage.reserve(new, 4) is None
    stage.kv.check()
    stage.kv.collected(step)
    assert stage.reserve(new, 8) is not None
    stage.kv.check()


def test_h1_quarantine_lasts_until_the_newest_of_several_steps_is_collected() -> None:
    stage = Stage(make_kv(2))
    old = stage.admit("aaaabbbb")
    first = stage.submit(stage.chunk(old, 4))
    second = stage.submit(stage.chunk(old))
    stage.commit(first)
    stage.release(old)
    stage.kv.collected(first)
    new = stage.open("cccc")
    assert stage.reserve(new, 4) is None
    stage.kv.collected(second)
    assert stage.reserve(new, 8) is not None
    stage.kv.check()


def test_h1_other_lanes_collect_out_of_order_and_lift_only_their_own_quarantine() -> None:
    stage = Stage(make_kv(2))
    slow, quick = stage.admit("aaaa"), stage.admit("bbbb")
    slow_step = stage.submit(stage.chunk(slow), lane=0)
    quick_step = stage.submit(stage.chunk(quick), lane=1)
    stage.release(slow, quick)
    stage.kv.collected(quick_step)
    usage = stage.kv.usage()
    assert (usage.free_pages, usage.groups[0].quarantined) == (1, 1)
    stage.kv.collected(slow_step)
    assert stage.kv.usage().free_pages == 2
    stage.kv.check()


def test_h1_a_prefix_hit_in_quarantine_is_neither_evicted_nor_freed() -> None:
    stage = Stage(make_kv(3))
    stage.cache("aaaa")
    reader = stage.admit("aaaabb")
    step = stage.submit(stage.chunk(reader))
    stage.release(reader)
    other = stage.open("cccccccc")
    assert stage.reserve(other, 8) is None
    assert stage.cached_tokens("aaaa") == 4
    stage.kv.collected(step)
    assert stage.reserve(other, 8) is not None
    assert stage.cached_tokens("aaaa") == 4, "the freed tail block and the unused one were enough"
    stage.kv.check()


def test_h2_planned_blocks_are_not_published_before_their_step_is_collected() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    step = stage.submit(stage.chunk(seq))
    assert stage.cached_tokens("aaaabbbb") == 0
    stage.finish(step)
    assert stage.cached_tokens("aaaabbbb") == 8


def test_h2_a_cancelled_step_publishes_nothing_and_its_slots_are_written_again() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    stage.cancel(stage.submit(stage.chunk(seq)))
    assert stage.cached_tokens("aaaabbbb") == 0
    stage.kv.check()
    stage.finish(stage.submit(stage.chunk(seq)))
    assert stage.cached_tokens("aaaabbbb") == 8
    stage.kv.check()


def test_h2_commit_of_a_step_that_was_never_submitted_is_refused() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaa")
    step = stage.submit(stage.chunk(seq))
    stage.kv.collected(step)
    with pytest.raises(InvariantError, match="commits step 0, which is not in flight with it"):
        stage.kv.commit(step, seq, stage.texts[seq], stage.now_s)


def test_h3_only_accepted_tokens_count_and_a_rejected_draft_publishes_nothing() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaabbbbb")
    step = stage.submit(stage.chunk(seq, 5, num_drafts=4))
    stage.finish(step, accepted=2)
    assert stage.cached_tokens("aaab") == 0
    stage.kv.check()
    stage.finish(stage.submit(stage.chunk(seq)))
    assert stage.cached_tokens("aaabbbbb") == 8
    assert len(stage.table(seq)) == 2
    stage.kv.check()


def test_h4_the_source_of_a_copy_is_not_evicted_before_the_copy_is_collected() -> None:
    stage = Stage(make_kv(3))
    source = stage.cache("aabb")[0]
    seq = stage.admit("aacc")
    copy = move(source, stage.table(seq)[0], 2)
    stage.done[seq] = 2
    step = stage.submit(stage.chunk(seq), moves=[copy])
    stage.kv.check()
    other = stage.open("dddddddd")
    assert stage.reserve(other, 8) is None
    assert stage.cached_tokens("aabb") == 4
    stage.kv.commit(step, seq, stage.texts[seq], stage.now_s)
    stage.kv.collected(step)
    assert stage.cached_tokens("aacc") == 4, "the copied tokens are committed with the computed ones"
    assert stage.reserve(other, 8) is not None
    assert stage.cached_tokens("aabb") == 0
    stage.kv.check()


def test_h4_the_private_source_of_a_copy_outlives_its_sequence() -> None:
    stage = Stage(make_kv(2))
    owner, seq = stage.admit("aa"), stage.admit("aab", publish=False)
    stage.finish(stage.submit(stage.chunk(owner)))
    stage.done[seq] = 2
    copy = move(stage.table(owner)[0], stage.table(seq)[0], 2)
    step = stage.submit(stage.chunk(seq), moves=[copy])
    stage.release(owner)
    assert stage.kv.usage().groups[0].quarantined == 1
    assert stage.kv.available_tokens == 0
    stage.kv.check()
    stage.kv.commit(step, seq, stage.texts[seq], stage.now_s)
    stage.kv.collected(step)
    assert stage.kv.available_tokens == 4
    stage.kv.check()


def test_h5_of_a_tail_that_is_still_being_filled_only_committed_tokens_are_copied() -> None:
    stage = Stage(make_kv(4))
    owner = stage.admit("aaaa")
    stage.finish(stage.submit(stage.chunk(owner, 2)))
    stage.submit(stage.chunk(owner))
    seq = stage.admit("aaab", publish=False)
    source, target = stage.table(owner)[0], stage.table(seq)[0]
    stage.done[seq] = 3
    with pytest.raises(InvariantError, match=r"copies slots that are not committed.*H5"):
        stage.submit(stage.chunk(seq), moves=[move(source, target, 3)])


def test_h5_a_copy_of_the_committed_part_goes_on_while_the_owner_writes_behind_it() -> None:
    stage = Stage(make_kv(4))
    owner = stage.admit("aaaa")
    stage.finish(stage.submit(stage.chunk(owner, 2)))
    seq = stage.admit("aaab", publish=False)
    source, target = stage.table(owner)[0], stage.table(seq)[0]
    filling = stage.submit(stage.chunk(owner), lane=0)
    stage.done[seq] = 2
    copying = stage.submit(stage.chunk(seq), lane=1, moves=[move(source, target, 2)])
    stage.kv.check()
    stage.finish(filling)
    assert stage.cached_tokens("aaaa") == 4, "the owner may publish the block it shares out of"
    stage.kv.check()
    stage.kv.commit(copying, seq, stage.texts[seq], stage.now_s)
    stage.kv.collected(copying)
    stage.kv.check()


def test_h6_a_published_block_is_never_written_again() -> None:
    stage = Stage(make_kv(4))
    seq = stage.run("aaaabb")
    published, own = stage.table(seq)
    other = stage.admit("cc")
    with pytest.raises(InvariantError, match=rf"copies block {published} of group 0, which is SHARED .*H6"):
        stage.submit(stage.chunk(other), moves=[move(own, published, 1)])


def test_h6_a_sequence_with_a_hit_writes_behind_the_hit_only() -> None:
    stage = Stage(make_kv(4))
    stage.cache("aaaa")
    seq = stage.admit("aaaabb")
    stage.done[seq] = 2
    with pytest.raises(InvariantError, match=r"writes slots \[2, 6\) of sequence 1, which goes on at 4"):
        stage.submit(stage.chunk(seq))


def test_h6_a_copy_never_lands_on_committed_or_planned_slots() -> None:
    stage = Stage(make_kv(4))
    source = stage.cache("aabb")[0]
    seq = stage.admit("cccc")
    stage.submit(stage.chunk(seq, 2))
    stage.done[seq] = 3
    target = stage.table(seq)[0]
    with pytest.raises(InvariantError, match="copies into sequence 1, which goes on at slot 2"):
        stage.submit(stage.chunk(seq), moves=[move(source, target, 2, dst_slot=1)])


def test_h6_two_sequences_never_share_a_block_they_write() -> None:
    stage = Stage(make_kv(6))
    first, second = stage.admit("aaaabb"), stage.admit("aaaabb")
    one, two = stage.submit(stage.chunk(first), lane=0), stage.submit(stage.chunk(second), lane=1)
    assert not set(stage.table(first)) & set(stage.table(second))
    stage.finish(two)
    stage.finish(one)
    stage.kv.check()
    assert not set(stage.table(first)) & set(stage.table(second)), "no table is changed behind a step's back"


def test_h7_a_sequence_is_on_one_lane_at_a_time() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    step = stage.submit(stage.chunk(seq, 4), lane=0)
    with pytest.raises(InvariantError, match=r"in flight on lane 0, step 1 is on lane 1 .*H7"):
        stage.submit(stage.chunk(seq, 2), lane=1)
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    step = stage.submit(stage.chunk(seq, 4), lane=0)
    stage.finish(step)
    stage.finish(stage.submit(stage.chunk(seq), lane=1))
    stage.kv.check()


def test_h9_nothing_is_stolen_from_a_sequence_in_flight() -> None:
    stage = Stage(make_kv(3))
    running = stage.admit("aaaabbbbcc")
    step = stage.submit(stage.chunk(running))
    wanting = stage.open("dddd")
    assert stage.reserve(wanting, 4) is None, "everything is in flight"
    stage.release(running)
    assert stage.reserve(wanting, 4) is None, "a released victim gives nothing before its step is collected"
    stage.kv.collected(step)
    assert stage.reserve(wanting, 4) is not None
    stage.kv.check()


def test_h9_a_victim_in_no_step_gives_its_blocks_at_once() -> None:
    stage = Stage(make_kv(3))
    victim, flying = stage.run("aaaabb"), stage.admit("cc")
    step = stage.submit(stage.chunk(flying))
    wanting = stage.open("dddddddd")
    assert stage.reserve(wanting, 8) is None
    stage.release(victim)
    assert stage.reserve(wanting, 8) is not None
    stage.finish(step)
    stage.kv.check()
