"""Flights: plans that contradict the memory are refused, and good ones are remembered until they are collected."""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import FULL, Stage, make_kv

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId
from plait.core.step import BlockGrant, Chunk, Move, StepPlan


def test_a_step_is_submitted_once_and_collected_once() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaa")
    step = stage.submit(stage.chunk(seq))
    with pytest.raises(InvariantError, match="step 0 is submitted after step 0; steps ascend"):
        stage.kv.submitted(StepPlan(step, LaneId(0), (), (), (), ()))
    stage.kv.collected(step)
    with pytest.raises(InvariantError, match="step 0 is collected but not in flight"):
        stage.kv.collected(step)


def test_a_chunk_needs_a_table() -> None:
    stage = Stage(make_kv(4))
    with pytest.raises(InvariantError, match="has a chunk of sequence 5, which has no table"):
        stage.submit(Chunk(SeqId(5), 0, 1, (1,)))


def test_a_chunk_needs_reserved_slots() -> None:
    stage = Stage(make_kv(4))
    seq = stage.open("aaaabbbb")
    stage.reserve(seq, 4)
    with pytest.raises(InvariantError, match=r"writes slots \[0, 8\) of sequence 0, .* has 4 slots"):
        stage.submit(stage.chunk(seq))


@pytest.mark.parametrize("start", [1, 3])
def test_steps_of_a_sequence_follow_one_another_without_gap_or_overlap(start: int) -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    stage.submit(stage.chunk(seq, 2))
    with pytest.raises(InvariantError, match="which goes on at 2"):
        stage.submit(Chunk(seq, start, 1, (1,)))


def test_a_sequence_may_run_several_steps_ahead_on_its_lane() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    steps = [
        stage.submit(stage.chunk(seq, 2)),
        stage.submit(stage.chunk(seq, 1, known=False)),
        stage.submit(stage.chunk(seq)),
    ]
    stage.kv.check()
    for step in steps:
        stage.finish(step)
        stage.kv.check()
    assert stage.cached_tokens("aaaabbbb") == 8


def test_what_runs_behind_a_cancelled_step_is_never_committed() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    first, second = stage.submit(stage.chunk(seq, 2)), stage.submit(stage.chunk(seq))
    stage.kv.collected(first)
    with pytest.raises(InvariantError, match=r"writes slots \[2, 8\), behind 0 committed ones"):
        stage.commit(second)
    stage.kv.collected(second)
    stage.done[seq] = 0
    stage.finish(stage.submit(stage.chunk(seq)))
    stage.kv.check()


def test_more_tokens_than_a_step_wrote_are_never_committed() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    step = stage.submit(stage.chunk(seq, 2))
    with pytest.raises(InvariantError, match=r"commits 3 tokens of step 0, which writes slots \[0, 2\)"):
        stage.kv.commit(step, seq, [1, 2, 3], stage.now_s)


def test_tokens_are_committed_once() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaa")
    step = stage.submit(stage.chunk(seq, 2))
    stage.commit(step)
    with pytest.raises(InvariantError, match="behind 2 committed ones"):
        stage.commit(step)


def test_a_result_without_tokens_is_committed_once_too() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaa")
    step = stage.submit(stage.chunk(seq))
    stage.commit(step, accepted=0)
    assert stage.hit("aaaab").pending is None, "the step is through and will publish nothing"
    stage.kv.check()
    with pytest.raises(InvariantError, match="behind 0 committed ones"):
        stage.commit(step, accepted=0)


def test_a_granted_block_must_stand_in_the_table() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    wrong = BlockGrant(seq, FULL, 1, (BlockId(0),))
    with pytest.raises(InvariantError, match="but the sequence holds"):
        stage.submit(stage.chunk(seq), blocks=[wrong])


def test_a_sequence_that_only_appears_in_a_grant_is_kept_until_the_step_is_collected() -> None:
    stage = Stage(make_kv(2))
    seq = stage.open("aaaa")
    grants = stage.reserve(seq, 4)
    assert grants is not None
    step = stage.submit(blocks=grants.blocks)
    stage.release(seq)
    assert stage.kv.usage().groups[0].quarantined == 1
    stage.kv.check()
    stage.kv.collected(step)
    assert stage.kv.usage().free_pages == 2


def test_a_sequence_named_by_a_later_step_starts_again_where_it_was_cancelled() -> None:
    stage = Stage(make_kv(2))
    seq = stage.admit("aaaa")
    step = stage.submit(stage.chunk(seq))
    naming = stage.submit(blocks=[BlockGrant(seq, FULL, 0, tuple(stage.table(seq)))])
    stage.cancel(step)
    stage.finish(stage.submit(stage.chunk(seq)))
    stage.kv.collected(naming)
    stage.kv.check()
    assert stage.cached_tokens("aaaa") == 4


def copying(stage: Stage, *moves: Move) -> None:
    """Submit the copies with a chunk of sequence 1, which goes on two tokens later."""
    seq = SeqId(1)
    stage.done[seq] = 2
    stage.submit(stage.chunk(seq), moves=moves)


@pytest.mark.parametrize(
    ("src_slot", "dst_slot", "num_tokens", "message"),
    [
        (0, 0, 0, "not committed"),
        (-1, 0, 2, "not committed"),
        (3, 0, 2, "not committed"),
        (0, 1, 2, "which goes on at slot 0"),
        (0, 0, 3, "which goes on at 3"),
        (0, 0, 1, "which goes on at 1"),
    ],
)
def test_a_copy_stays_inside_blocks_and_ends_where_the_chunk_begins(
    src_slot: int, dst_slot: int, num_tokens: int, message: str
) -> None:
    stage = Stage(make_kv(4))
    source = stage.cache("aabb")[0]
    seq = stage.admit("aacc")
    with pytest.raises(InvariantError, match=message):
        copying(stage, Move(FULL, source, src_slot, stage.table(seq)[0], dst_slot, num_tokens))


def test_a_copy_needs_a_chunk_of_its_target_in_the_same_step() -> None:
    stage = Stage(make_kv(4))
    source = stage.cache("aabb")[0]
    seq = stage.admit("aacc")
    with pytest.raises(InvariantError, match="copies into sequence 1 but has no chunk of it"):
        stage.submit(moves=[Move(FULL, source, 0, stage.table(seq)[0], 0, 2)])


def test_a_copy_from_a_free_block_is_refused() -> None:
    stage = Stage(make_kv(4))
    stage.cache("aabb")
    seq = stage.admit("aacc")
    with pytest.raises(InvariantError, match="copies block 3 of group 0, which is FREE"):
        copying(stage, Move(FULL, BlockId(3), 0, stage.table(seq)[0], 0, 2))


def test_copies_bring_the_same_tokens_to_every_group() -> None:
    stage = Stage(make_kv(6, 1, 2))
    stage.now_s = 1.0
    old = stage.run("aabb")
    sources = [stage.table(old, GroupId(g))[0] for g in range(2)]
    stage.release(old)
    seq = stage.admit("aacc")
    moves = [Move(GroupId(g), sources[g], 0, stage.table(seq, GroupId(g))[0], 0, 2 - g) for g in range(2)]
    with pytest.raises(InvariantError, match=r"copies bring \[2, 1\] tokens, group by group"):
        copying(stage, *moves)


def test_two_copies_may_follow_one_another() -> None:
    stage = Stage(make_kv(4))
    source = stage.cache("aabb")[0]
    seq = stage.admit("aacc")
    target = stage.table(seq)[0]
    copying(stage, Move(FULL, source, 0, target, 0, 1), Move(FULL, source, 1, target, 1, 1))
    stage.kv.check()
