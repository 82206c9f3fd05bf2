"""States behind rows that may be rejected: kept in blocks of their own, one of them chosen, none lost."""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import Stage
from tests.unit.kv.test_groups import FULL, OTHER, make

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, SeqId, StepId
from plait.core.step import BlockGrant, Snapshot
from plait.kv.blocks import BlockState
from plait.kv.cache import NO_GRANTS


def drafting(stage: Stage, seq: SeqId, num_drafts: int) -> tuple[StepId, list[BlockId]]:
    """A step of the next token and drafts behind it. Returns it and the blocks of copies, row by row."""
    start = stage.done[seq]
    taken = stage.kv.scratch.take(seq, start + 1, num_drafts)
    assert taken is not None
    snapshots = tuple(Snapshot(length - 1 - start, group, block) for length, group, block in taken)
    chunk = stage.chunk(seq, 1 + num_drafts, num_drafts=num_drafts)._replace(snapshots=snapshots)
    step = stage.submit(chunk)
    stage.kv.check()
    return step, [block for _, _, block in taken]


def stage_of_states(num_pages: int = 20) -> tuple[Stage, SeqId]:
    """A sequence that has computed five tokens of a prompt of 14."""
    stage = make(num_pages, ("state", 0))
    seq = stage.admit("aaaabbbbccccdd")
    stage.finish(stage.submit(stage.chunk(seq, 5)))
    return stage, seq


def settle(stage: Stage, seq: SeqId, step: StepId, accepted: int) -> bool:
    stage.commit(step, accepted)
    changed = stage.kv.scratch.settle(seq, stage.done[seq])
    stage.kv.collected(step)
    stage.kv.check()
    return changed


@pytest.mark.parametrize("accepted", [1, 2, 3])
def test_the_copy_behind_the_last_accepted_row_is_the_running_state_and_the_others_are_free(accepted: int) -> None:
    stage, seq = stage_of_states()
    (before,) = stage.table(seq, OTHER)
    step, copies = drafting(stage, seq, 3)
    assert settle(stage, seq, step, accepted)
    chosen = copies[accepted - 1]
    assert stage.table(seq, OTHER) == [chosen]
    pool = stage.kv._pools[OTHER]
    assert {pool.state(block) for block in copies if block != chosen} == {BlockState.FREE}
    # Until the executor knows, the block that it takes for the state is nobody else's.
    assert pool.state(before) is BlockState.PRIVATE
    grants = stage.reserve(seq, stage.done[seq] + 1)
    assert grants is not None
    assert grants.blocks == (BlockGrant(seq, OTHER, 0, (chosen,)),)
    stage.finish(stage.submit(stage.chunk(seq, 1), blocks=grants.blocks))
    assert pool.state(before) is BlockState.FREE
    assert stage.reserve(seq, stage.done[seq]) is NO_GRANTS
    stage.kv.check()


def test_where_everything_was_accepted_the_state_stays_where_it_is() -> None:
    stage, seq = stage_of_states()
    before = stage.table(seq, OTHER)
    step, copies = drafting(stage, seq, 3)
    assert not settle(stage, seq, step, 4)
    assert stage.table(seq, OTHER) == before
    assert {stage.kv._pools[OTHER].state(block) for block in copies} == {BlockState.FREE}


def test_without_memory_beyond_what_everybody_needs_there_are_no_copies_and_nothing_changes() -> None:
    stage, seq = stage_of_states(num_pages=8)  # four of tokens and one state; a block more for whoever runs
    used = stage.kv.usage()
    assert stage.kv.scratch.take(seq, 6, 3) is None
    assert stage.kv.usage() == used
    taken = stage.kv.scratch.take(seq, 6, 2)
    assert taken is not None
    stage.kv.scratch.give_back(seq)
    assert stage.kv.usage() == used


def test_copies_of_one_who_leaves_in_flight_are_nobodys_before_the_step_is_collected() -> None:
    stage, seq = stage_of_states()
    step, copies = drafting(stage, seq, 2)
    stage.release(seq)
    stage.kv.check()
    assert {stage.kv._pools[OTHER].state(block) for block in copies} == {BlockState.QUARANTINED}
    stage.kv.collected(step)
    stage.kv.check()
    assert stage.kv.usage().used_bytes == 0


def test_a_state_that_was_replaced_goes_with_its_sequence() -> None:
    stage, seq = stage_of_states()
    step, _ = drafting(stage, seq, 2)
    settle(stage, seq, step, 2)
    stage.release(seq)
    stage.kv.check()
    assert stage.kv.usage().used_bytes == 0


def test_copies_that_nobody_took_are_not_written() -> None:
    stage, seq = stage_of_states()
    taken = stage.kv.scratch.take(seq, 6, 1)
    assert taken is not None
    with pytest.raises(InvariantError, match="writes snapshots"):
        stage.submit(stage.chunk(seq, 2, num_drafts=1)._replace(snapshots=(Snapshot(1, OTHER, taken[0][2]),)))
    with pytest.raises(InvariantError, match="takes scratch states"):
        stage.kv.scratch.take(seq, 6, 1)
    assert stage.table(seq, FULL)
