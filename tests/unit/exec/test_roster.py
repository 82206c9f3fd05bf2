"""The roster against plans that a correct scheduler makes, and against each way in which a wrong one breaks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    FROM_DEVICE,
    BlockGrant,
    Chunk,
    Drafts,
    Encode,
    Join,
    Leave,
    Move,
    OutputKind,
    Outputs,
    SeqResult,
    SeqStatus,
    Snapshot,
    StepPlan,
    StepResult,
    StepStatus,
)
from plait.exec.roster import NO_BLOCK, GroupSlots, Holds, Roster
from plait.model.visibility import window

FULL = GroupSlots(num_blocks=10, tokens_per_block=4)
MANY = replace(FULL, num_blocks=500)


def join(seq: int, row: int | None = None) -> Join:
    return Join(SeqId(seq), seq if row is None else row, SamplingParams(), seed=0, choice=0, num_prompt=1)


def grant(seq: int, blocks: Sequence[int], first: int = 0, group: int = 0) -> BlockGrant:
    return BlockGrant(SeqId(seq), GroupId(group), first, tuple(BlockId(block) for block in blocks))


def chunk(seq: int, start: int, num_tokens: int, *, samples: bool = False) -> Chunk:
    outputs = (Outputs(num_tokens - 1, 1, OutputKind.SAMPLE),) if samples else ()
    return Chunk(SeqId(seq), start, num_tokens, (7,) * num_tokens, outputs=outputs)


def plan(
    step: int,
    chunks: Sequence[Chunk],
    *,
    lane: int = 0,
    roster: Sequence[Join | Leave] = (),
    blocks: Sequence[BlockGrant] = (),
    moves: Sequence[Move] = (),
    encodes: Sequence[Encode] = (),
) -> StepPlan:
    return StepPlan(
        StepId(step), LaneId(lane), tuple(roster), tuple(blocks), tuple(moves), tuple(chunks), tuple(encodes)
    )


def result(made: StepPlan, computed: Sequence[int] | None = None, status: SeqStatus = SeqStatus.OK) -> StepResult:
    counts = [one.num_tokens for one in made.chunks] if computed is None else computed
    seqs = tuple(SeqResult(one.seq, status, count) for one, count in zip(made.chunks, counts, strict=True))
    step_status = StepStatus.CANCELLED if status is SeqStatus.CANCELLED else StepStatus.COMPLETED
    return StepResult(made.step, made.lane, step_status, 0.0, 1.0, 1, seqs)


def run(roster: Roster, made: StepPlan, computed: Sequence[int] | None = None) -> None:
    roster.apply(made)
    roster.settle(result(made, computed))


def test_a_prompt_in_two_chunks_then_decode_keeps_one_growing_table() -> None:
    roster = Roster(8, [FULL])
    (seat,) = roster.apply(plan(0, [chunk(1, 0, 3)], roster=[join(1)], blocks=[grant(1, [5])]))
    roster.settle(result(plan(0, [chunk(1, 0, 3)])))
    run(roster, plan(1, [chunk(1, 3, 3)], blocks=[grant(1, [2], first=1)]))
    assert roster.seat(SeqId(1)) is seat
    assert seat.tables == [[5, 2]]
    assert seat.num_slots == 6


def test_a_step_behind_one_in_flight_may_take_its_token_from_the_device() -> None:
    roster = Roster(8, [FULL])
    first = plan(0, [chunk(1, 0, 2, samples=True)], roster=[join(1)], blocks=[grant(1, [0])])
    second = plan(1, [Chunk(SeqId(1), 2, 1, FROM_DEVICE)])
    roster.apply(first)
    roster.apply(second)
    roster.settle(result(first))
    roster.settle(result(second))
    assert roster.seat(SeqId(1)).num_slots == 3


def test_rejected_drafts_put_the_next_chunk_back() -> None:
    roster = Roster(8, [FULL])
    run(roster, plan(0, [chunk(1, 0, 2)], roster=[join(1)], blocks=[grant(1, [0, 1])]))
    verify = Chunk(SeqId(1), 2, 4, (7,), Drafts((8, 9, 10), (-1, 0, 1)))
    run(roster, plan(1, [verify]), computed=[2])
    run(roster, plan(2, [chunk(1, 4, 1)]))
    assert roster.seat(SeqId(1)).num_slots == 5


def test_a_cancelled_chunk_is_computed_again_from_its_start() -> None:
    roster = Roster(8, [FULL])
    made = plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=[grant(1, [0])])
    roster.apply(made)
    roster.settle(result(made, [0], SeqStatus.CANCELLED))
    run(roster, plan(1, [chunk(1, 0, 4)]))


def test_preemption_is_leaving_now_and_joining_later_on_another_row() -> None:
    roster = Roster(2, [FULL])
    run(roster, plan(0, [chunk(1, 0, 4)], roster=[join(1, row=0)], blocks=[grant(1, [0])]))
    run(roster, plan(1, [chunk(2, 0, 4)], roster=[Leave(SeqId(1)), join(2, row=0)], blocks=[grant(2, [0])]))
    run(roster, plan(2, [chunk(1, 0, 4)], roster=[join(1, row=1)], blocks=[grant(1, [1])]))
    assert roster.num_joined == 2


def test_two_sequences_share_a_full_prefix_block() -> None:
    roster = Roster(8, [FULL])
    run(roster, plan(0, [chunk(1, 0, 5)], roster=[join(1)], blocks=[grant(1, [0, 1])]))
    both = [chunk(1, 5, 1), chunk(2, 4, 2)]
    run(roster, plan(1, both, roster=[join(2)], blocks=[grant(2, [0, 2])]))


def test_a_move_makes_a_partly_matched_tail_block_private() -> None:
    roster = Roster(8, [FULL])
    run(roster, plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=[grant(1, [0])]))
    copy = Move(GroupId(0), BlockId(0), 0, BlockId(3), 0, 2)
    both = [chunk(2, 2, 2)]
    run(roster, plan(1, both, roster=[join(2)], blocks=[grant(2, [3])], moves=[copy]))


def test_a_block_behind_the_window_may_belong_to_another_while_its_first_owner_runs_on() -> None:
    roster = Roster(8, [GroupSlots(num_blocks=10, tokens_per_block=4, visibility=window(4))])
    run(roster, plan(0, [chunk(1, 0, 8)], roster=[join(1)], blocks=[grant(1, [0, 1])]))
    run(roster, plan(1, [chunk(1, 8, 1), chunk(2, 0, 3)], roster=[join(2)], blocks=[grant(1, [2], 2), grant(2, [0])]))


def test_a_window_hit_needs_only_the_blocks_that_are_still_seen() -> None:
    roster = Roster(8, [GroupSlots(num_blocks=10, tokens_per_block=4, visibility=window(4))])
    run(roster, plan(0, [chunk(1, 0, 8)], roster=[join(1)], blocks=[grant(1, [0, 1])]))
    late = plan(1, [chunk(2, 8, 2)], roster=[join(2)], blocks=[grant(2, [1, 4], first=1)])
    run(roster, late)
    assert roster.seat(SeqId(2)).tables == [[NO_BLOCK, 1, 4]]


def test_a_left_sequence_keeps_its_blocks_until_its_last_step_is_collected() -> None:
    roster = Roster(8, [FULL])
    first = plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=[grant(1, [0])])
    roster.apply(first)
    roster.apply(plan(1, [], roster=[Leave(SeqId(1))]))
    with pytest.raises(InvariantError, match=r"writes block 0 .* but sequence 1, in flight on lane 0, holds it"):
        roster.apply(plan(2, [chunk(2, 0, 1)], lane=1, roster=[join(2, row=3)], blocks=[grant(2, [0])]))


def test_state_blocks_are_written_by_every_chunk_and_encoder_blocks_by_none() -> None:
    groups = [GroupSlots(4, Holds.STATE), GroupSlots(4, Holds.ENCODED)]
    roster = Roster(8, groups)
    image = Encode(SeqId(1), b"image", 1, GroupId(1), (BlockId(0),))
    grants = [grant(1, [0]), grant(1, [0], group=1), grant(2, [1]), grant(2, [0], group=1)]
    run(roster, plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=grants[:2], encodes=[image]))
    run(roster, plan(1, [chunk(2, 0, 4)], roster=[join(2)], blocks=grants[2:]))
    shared_state = plan(2, [chunk(1, 4, 1), chunk(3, 0, 1)], roster=[join(3)], blocks=[grant(3, [0])])
    with pytest.raises(InvariantError, match="writes block 0 of group 0"):
        roster.apply(shared_state)


# What a wrong scheduler does:


@pytest.fixture
def started() -> Roster:
    """Sequence 1 computed five tokens in blocks 0 and 1 and is at rest on row 1."""
    roster = Roster(4, [FULL])
    run(roster, plan(0, [chunk(1, 0, 5)], roster=[join(1)], blocks=[grant(1, [0, 1])]))
    return roster


FAULTS = {
    "sequence 2 has not joined": plan(1, [chunk(2, 0, 1)]),
    "sequence 1 joined twice": plan(1, [], roster=[join(1, row=2)]),
    "row 1 joined twice": plan(1, [], roster=[join(2, row=1)]),
    "rows go from 0 to 3": plan(1, [], roster=[join(2, row=4)]),
    "starts at 6, but 5 tokens are computed": plan(1, [chunk(1, 6, 1)]),
    "starts at 4, but 5 tokens are computed": plan(1, [chunk(1, 4, 1)]),
    "ends at 9, but its table of group 0 has 8 slots": plan(1, [chunk(1, 5, 4)]),
    "group 1, which does not exist": plan(1, [], blocks=[grant(1, [2], first=2, group=1)]),
    "granted block 10; group 0 has 10": plan(1, [], blocks=[grant(1, [10], first=2)]),
    "nothing was sampled": plan(1, [Chunk(SeqId(1), 5, 1, FROM_DEVICE)]),
    "blocks of group 0 that it was never granted": plan(
        1, [chunk(2, 0, 8)], roster=[join(2)], blocks=[grant(2, [2], first=1)]
    ),
    "has 0 of 4 slots written": plan(1, [chunk(2, 4, 1)], roster=[join(2)], blocks=[grant(2, [7, 8])]),
    "has 1 of 2 slots written": plan(1, [chunk(2, 6, 1)], roster=[join(2)], blocks=[grant(2, [0, 1])]),
    "but sequence 2, in flight on lane 0, holds it": plan(
        1, [chunk(1, 5, 1), chunk(2, 5, 1)], roster=[join(2)], blocks=[grant(2, [0, 1])]
    ),
    "which nobody holds": plan(1, [], moves=[Move(GroupId(0), BlockId(0), 0, BlockId(9), 0, 4)]),
    "of which 1 are written": plan(
        1,
        [chunk(2, 0, 1)],
        roster=[join(2)],
        blocks=[grant(2, [5])],
        moves=[Move(GroupId(0), BlockId(1), 0, BlockId(5), 0, 2)],
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_plan_that_breaks_a_rule_is_refused(started: Roster, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        started.apply(FAULTS[message])


def test_a_sequence_in_flight_stays_on_its_lane(started: Roster) -> None:
    started.apply(plan(1, [chunk(1, 5, 1)]))
    with pytest.raises(InvariantError, match="on lane 1 while in flight on lane 0"):
        started.apply(plan(2, [chunk(1, 6, 1)], lane=1))


def test_a_sequence_leaves_on_the_lane_it_is_in_flight_on(started: Roster) -> None:
    started.apply(plan(1, [chunk(1, 5, 1)]))
    with pytest.raises(InvariantError, match="leaves lane 1 while in flight on lane 0"):
        started.apply(plan(2, [], lane=1, roster=[Leave(SeqId(1))]))


def test_a_row_changes_lanes_only_after_the_step_that_leaves_it_was_collected(started: Roster) -> None:
    leaving = plan(1, [], roster=[Leave(SeqId(1))])
    started.apply(leaving)
    joining = plan(2, [chunk(2, 0, 1)], lane=1, roster=[join(2, row=1)], blocks=[grant(2, [4])])
    with pytest.raises(InvariantError, match="row 1 joins lane 1 before step 1"):
        started.apply(joining)
    started.settle(result(leaving))
    started.apply(replace(joining, step=StepId(3)))


def test_nothing_is_planned_behind_drafts_in_flight(started: Roster) -> None:
    started.apply(plan(1, [Chunk(SeqId(1), 5, 2, (7,), Drafts((8,), (-1,)))]))
    with pytest.raises(InvariantError, match="behind drafts"):
        started.apply(plan(2, [chunk(1, 7, 1)]))


def test_a_table_entry_does_not_change_under_a_step_in_flight(started: Roster) -> None:
    started.apply(plan(1, [chunk(1, 5, 1)]))
    with pytest.raises(InvariantError, match="entry 1 of sequence 1 changes"):
        started.apply(plan(2, [chunk(1, 6, 1)], blocks=[grant(1, [9], first=1)]))


def test_a_block_that_a_step_in_flight_reads_is_not_written_on_another_lane(started: Roster) -> None:
    started.apply(plan(1, [chunk(1, 5, 1)]))
    stolen = plan(2, [chunk(2, 0, 1)], lane=1, roster=[join(2)], blocks=[grant(2, [0])])
    with pytest.raises(InvariantError, match="writes block 0 of group 0 for sequence 2, but sequence 1"):
        started.apply(stolen)


def test_a_prefix_is_not_shared_before_the_step_that_computes_it_was_collected(started: Roster) -> None:
    started.apply(plan(1, [chunk(1, 5, 3)]))
    with pytest.raises(InvariantError, match="block 1 of group 0 has 1 of 4 slots written"):
        started.apply(plan(2, [chunk(2, 8, 1)], roster=[join(2)], blocks=[grant(2, [0, 1, 2])]))


def test_a_cancelled_step_publishes_nothing(started: Roster) -> None:
    made = plan(1, [chunk(2, 0, 4)], roster=[join(2)], blocks=[grant(2, [6])])
    started.apply(made)
    started.settle(result(made, [0], SeqStatus.CANCELLED))
    with pytest.raises(InvariantError, match="block 6 of group 0 has 0 of 4 slots written"):
        started.apply(plan(2, [chunk(3, 4, 1)], roster=[join(3)], blocks=[grant(3, [6, 7])]))


def test_a_reused_block_forgets_what_its_last_owner_wrote(started: Roster) -> None:
    run(started, plan(1, [chunk(2, 0, 1)], roster=[Leave(SeqId(1)), join(2)], blocks=[grant(2, [0])]))
    with pytest.raises(InvariantError, match="block 0 of group 0 has 1 of 4 slots written"):
        started.apply(plan(2, [chunk(3, 4, 1)], roster=[join(3)], blocks=[grant(3, [0, 7])]))


def test_a_snapshot_is_a_write() -> None:
    roster = Roster(4, [GroupSlots(4, Holds.STATE)])
    snapshot = (Snapshot(1, GroupId(0), BlockId(3)),)
    two = [chunk(seq, 0, 2)._replace(snapshots=snapshot) for seq in (1, 2)]
    with pytest.raises(InvariantError, match="a step in flight writes it for sequence 1"):
        roster.apply(plan(0, two, roster=[join(1), join(2)], blocks=[grant(1, [0]), grant(2, [1])]))


def test_steps_are_applied_and_settled_once(started: Roster) -> None:
    made = plan(1, [chunk(1, 5, 1)])
    started.apply(made)
    with pytest.raises(InvariantError, match="step 1 was submitted twice"):
        started.apply(made)
    started.settle(result(made))
    with pytest.raises(InvariantError, match="step 1 was collected but is not in flight"):
        started.settle(result(made))


def test_an_entry_behind_the_window_is_not_granted_again() -> None:
    roster = Roster(4, [GroupSlots(num_blocks=10, tokens_per_block=4, visibility=window(4))])
    run(roster, plan(0, [chunk(1, 0, 8)], roster=[join(1)], blocks=[grant(1, [0, 1])]))
    with pytest.raises(InvariantError, match="behind its window"):
        roster.apply(plan(1, [], blocks=[grant(1, [5])]))


# Two steps in flight, and the one in front comes to nothing:


def two_in_flight(roster: Roster) -> tuple[StepPlan, StepPlan]:
    first = plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=[grant(1, [0, 1, 2])])
    second = plan(1, [chunk(1, 4, 4, samples=True)])
    for made in (first, second):
        roster.apply(made)
    return first, second


def test_two_cancelled_chunks_put_the_sequence_back_to_the_first() -> None:
    roster = Roster(8, [FULL])
    for made in two_in_flight(roster):
        roster.settle(result(made, [0], SeqStatus.CANCELLED))
    assert roster.seat(SeqId(1)).num_slots == 0
    run(roster, plan(2, [chunk(1, 0, 6)]))
    assert roster.seat(SeqId(1)).num_computed == 6


@pytest.mark.parametrize("status", [SeqStatus.CANCELLED, SeqStatus.FAILED])
def test_while_something_is_in_flight_the_next_chunk_still_stands_behind_it(status: SeqStatus) -> None:
    roster = Roster(8, [FULL])
    first, _ = two_in_flight(roster)
    roster.settle(result(first, [0], status))
    assert roster.seat(SeqId(1)).num_computed == 0
    with pytest.raises(InvariantError, match="starts at 0, but 8 tokens are computed or in flight"):
        roster.apply(plan(2, [chunk(1, 0, 4)]))


def test_behind_a_prefix_hit_two_cancelled_chunks_go_back_to_the_hit() -> None:
    roster = Roster(8, [FULL])
    run(roster, plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=[grant(1, [0])]))
    made = [
        plan(1, [chunk(2, 4, 2)], roster=[join(2)], blocks=[grant(2, [0, 5])]),
        plan(2, [chunk(2, 6, 2)]),
    ]
    for one in made:
        roster.apply(one)
    for one in made:
        roster.settle(result(one, [0], SeqStatus.CANCELLED))
    run(roster, plan(3, [chunk(2, 4, 1)]))


def test_an_executor_that_computes_behind_a_cancelled_chunk_is_found_out() -> None:
    roster = Roster(8, [FULL])
    first, second = two_in_flight(roster)
    roster.settle(result(first, [0], SeqStatus.CANCELLED))
    with pytest.raises(InvariantError, match="said to be computed from 4 on, behind 0 computed tokens"):
        roster.settle(result(second))


def test_cancelled_chunks_move_no_window() -> None:
    """The chunk that is computed again sees what the second of the cancelled ones would not have seen."""
    roster = Roster(8, [GroupSlots(num_blocks=10, tokens_per_block=4, visibility=window(4))])
    run(roster, plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=[grant(1, [0, 1, 2, 3])]))
    made = [plan(1, [chunk(1, 4, 6)]), plan(2, [chunk(1, 10, 2)])]
    for one in made:
        roster.apply(one)
    for one in made:
        roster.settle(result(one, [0], SeqStatus.CANCELLED))
    with pytest.raises(InvariantError, match="writes block 0 of group 0 for sequence 2"):
        roster.apply(plan(3, [chunk(1, 4, 1), chunk(2, 0, 1)], roster=[join(2)], blocks=[grant(2, [0])]))


@pytest.mark.parametrize(("first_samples", "second_samples"), [(True, False), (False, True)])
def test_the_token_on_the_device_is_that_of_the_last_chunk_that_was_computed(
    first_samples: bool, second_samples: bool
) -> None:
    roster = Roster(8, [FULL])
    made = plan(0, [chunk(1, 0, 4, samples=first_samples)], roster=[join(1)], blocks=[grant(1, [0, 1])])
    run(roster, made)
    cancelled = plan(1, [chunk(1, 4, 1, samples=second_samples)])
    roster.apply(cancelled)
    roster.settle(result(cancelled, [0], SeqStatus.CANCELLED))
    again = plan(2, [Chunk(SeqId(1), 4, 1, FROM_DEVICE)])
    if first_samples:
        run(roster, again)
    else:
        with pytest.raises(InvariantError, match="nothing was sampled"):
            roster.apply(again)


def test_a_block_that_a_sequence_at_rest_holds_is_not_written_by_another() -> None:
    """It will read it again in its next step."""
    roster = Roster(8, [FULL])
    run(roster, plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=[grant(1, [0])]))
    with pytest.raises(InvariantError, match=r"writes block 0 .* but sequence 1, at rest, holds it"):
        roster.apply(plan(1, [chunk(2, 0, 1)], roster=[join(2)], blocks=[grant(2, [0])]))


# Moves:


def copying(step: int, seq: int, source: int, copy: int, *, lane: int = 0) -> StepPlan:
    """The sequence joins with a copy of two slots, and computes nothing yet."""
    move = Move(GroupId(0), BlockId(source), 0, BlockId(copy), 0, 2)
    return plan(step, [], lane=lane, roster=[join(seq)], blocks=[grant(seq, [copy])], moves=[move])


@pytest.fixture
def source() -> Roster:
    """Sequence 1 has computed four tokens in block 0 and left."""
    roster = Roster(8, [FULL])
    run(roster, plan(0, [chunk(1, 0, 4)], roster=[join(1)], blocks=[grant(1, [0])]))
    run(roster, plan(1, [], roster=[Leave(SeqId(1))]))
    return roster


def test_what_a_step_in_flight_moves_is_there_for_the_next_step_of_its_sequence(source: Roster) -> None:
    source.apply(copying(2, 2, 0, 5))
    source.apply(plan(3, [chunk(2, 2, 2)]))


def test_what_a_step_in_flight_moves_is_not_there_for_others(source: Roster) -> None:
    source.apply(copying(2, 2, 0, 5))
    with pytest.raises(InvariantError, match="moves slots up to 2 of block 5 of group 0, of which 0 are written"):
        source.apply(copying(3, 3, 5, 6, lane=1))


def test_what_was_moved_is_there_for_others_once_it_was_collected(source: Roster) -> None:
    run(source, copying(2, 2, 0, 5))
    run(source, copying(3, 3, 5, 6, lane=1))
    run(source, plan(4, [chunk(3, 2, 1)], lane=1))


def test_moves_of_a_failed_step_brought_nothing(source: Roster) -> None:
    made = copying(2, 2, 0, 5)
    source.apply(made)
    source.settle(replace(result(made), status=StepStatus.FAILED))
    with pytest.raises(InvariantError, match="block 5 of group 0 has 0 of 2 slots written"):
        source.apply(plan(3, [chunk(2, 2, 1)]))


def test_a_block_that_a_step_of_another_lane_still_copies_from_is_not_written(source: Roster) -> None:
    """The source has no owner any more, and the copy has not been made."""
    made = copying(2, 2, 0, 5)
    source.apply(made)
    stolen = plan(3, [chunk(3, 0, 1)], lane=1, roster=[join(3)], blocks=[grant(3, [0])])
    with pytest.raises(InvariantError, match=r"but step 2, in flight on lane 0, still copies from it"):
        source.apply(stolen)


def test_an_owner_may_fill_the_slots_behind_those_that_are_copied_from_its_block() -> None:
    roster = Roster(8, [FULL])
    run(roster, plan(0, [chunk(1, 0, 2)], roster=[join(1)], blocks=[grant(1, [0])]))
    roster.apply(copying(1, 2, 0, 5, lane=1))
    roster.apply(plan(2, [chunk(1, 2, 2)]))


# States:


def state_move(source: int, target: int) -> Move:
    return Move(GroupId(0), BlockId(source), 0, BlockId(target), 0, 1)


def kept(made: Chunk, **blocks: int) -> Chunk:
    """`kept(chunk, at_1=5)`: the state behind the chunk's token 1 is kept in block 5."""
    snapshots = (Snapshot(int(name[3:]), GroupId(0), BlockId(block)) for name, block in blocks.items())
    return made._replace(snapshots=tuple(snapshots))


@pytest.fixture
def states() -> Roster:
    """Sequence 1 has computed six tokens with its state in block 0; block 5 keeps the state behind the fourth."""
    roster = Roster(8, [GroupSlots(8, Holds.STATE)])
    run(roster, plan(0, [kept(chunk(1, 0, 6), at_3=5)], roster=[join(1)], blocks=[grant(1, [0])]))
    return roster


def test_a_sequence_joins_behind_a_checkpoint_that_is_moved_into_its_state(states: Roster) -> None:
    made = plan(1, [chunk(2, 4, 2)], roster=[join(2)], blocks=[grant(2, [1])], moves=[state_move(5, 1)])
    run(states, made)
    run(states, plan(2, [chunk(2, 6, 1)]))


def test_a_checkpoint_moved_in_one_step_is_there_in_the_next(states: Roster) -> None:
    made = plan(1, [], roster=[join(2)], blocks=[grant(2, [1])], moves=[state_move(5, 1)])
    states.apply(made)
    states.apply(plan(2, [chunk(2, 4, 2)]))


def test_rejected_drafts_are_rolled_back_by_moving_the_state_behind_the_accepted_ones(states: Roster) -> None:
    verify = Chunk(SeqId(1), 6, 3, (7,), Drafts((8, 9), (-1, 0)))
    run(states, plan(1, [kept(verify, at_0=6, at_1=7)]), computed=[2])
    run(states, plan(2, [chunk(1, 8, 1)], moves=[state_move(7, 0)]))


def test_drafts_that_were_all_accepted_need_no_move(states: Roster) -> None:
    run(states, plan(1, [Chunk(SeqId(1), 6, 3, (7,), Drafts((8, 9), (-1, 0)))]), computed=[3])
    run(states, plan(2, [chunk(1, 9, 1)]))


def test_a_queued_chunk_goes_on_from_the_state_that_the_one_before_it_will_leave(states: Roster) -> None:
    made = [plan(1, [chunk(1, 6, 2)]), plan(2, [chunk(1, 8, 2)])]
    for one in made:
        states.apply(one)
    for one in made:
        states.settle(result(one))
    run(states, plan(3, [chunk(1, 10, 1)]))


STATE_FAULTS = {
    "state in block 1 of group 0 has seen 0 tokens; move a checkpoint": plan(
        1, [chunk(2, 4, 1)], roster=[join(2)], blocks=[grant(2, [1])]
    ),
    "starts at 5, but the state in block 1 of group 0 has seen 4 tokens": plan(
        1, [chunk(2, 5, 1)], roster=[join(2)], blocks=[grant(2, [1])], moves=[state_move(5, 1)]
    ),
    "moves state 4 of group 0 into block 1, but no collected step left a state there": plan(
        1, [chunk(2, 4, 1)], roster=[join(2)], blocks=[grant(2, [1])], moves=[state_move(4, 1)]
    ),
    "as 2 slots; a state is moved whole": plan(
        1, [], roster=[join(2)], blocks=[grant(2, [1])], moves=[replace(state_move(5, 1), num_tokens=2)]
    ),
    "into block 7, which nobody holds": plan(1, [], moves=[state_move(5, 7)]),
    "has no state in group 0; it was granted no block": plan(1, [chunk(2, 0, 1)], roster=[join(2)]),
}


@pytest.mark.parametrize("message", STATE_FAULTS)
def test_a_state_that_is_not_there_is_not_gone_on_from(states: Roster, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        states.apply(STATE_FAULTS[message])


def test_rejected_drafts_that_nobody_rolls_back_are_found_out(states: Roster) -> None:
    run(states, plan(1, [Chunk(SeqId(1), 6, 3, (7,), Drafts((8, 9), (-1, 0)))]), computed=[2])
    with pytest.raises(InvariantError, match="starts at 8, but the state in block 0 of group 0 has seen 0 tokens"):
        states.apply(plan(2, [chunk(1, 8, 1)]))


def test_a_cancelled_chunk_leaves_no_state_to_go_on_from(states: Roster) -> None:
    """Some of its layers may have been computed."""
    made = plan(1, [chunk(1, 6, 1)])
    states.apply(made)
    states.settle(result(made, [0], SeqStatus.CANCELLED))
    with pytest.raises(InvariantError, match="has seen 0 tokens; move a checkpoint there first"):
        states.apply(plan(2, [chunk(1, 6, 1)]))


def test_a_state_in_flight_is_neither_copied_nor_replaced(states: Roster) -> None:
    states.apply(plan(1, [chunk(1, 6, 1)]))
    with pytest.raises(InvariantError, match=r"moves state 0 .* but no collected step left a state there"):
        states.apply(plan(2, [], lane=1, roster=[join(2)], blocks=[grant(2, [1])], moves=[state_move(0, 1)]))


def test_a_state_is_not_replaced_under_its_sequence_in_flight(states: Roster) -> None:
    states.apply(plan(1, [chunk(1, 6, 1)]))
    with pytest.raises(InvariantError, match="but sequence 1, whose state it is, is in flight"):
        states.apply(plan(2, [], moves=[state_move(5, 0)]))


def test_a_block_that_another_is_granted_meanwhile_is_not_written_further() -> None:
    roster = Roster(8, [FULL])
    run(
        roster,
        plan(0, [chunk(1, 0, 1), chunk(2, 0, 1)], roster=[join(1), join(2)], blocks=[grant(1, [5]), grant(2, [6])]),
    )
    run(roster, plan(1, [chunk(1, 1, 1)]))
    run(roster, plan(2, [chunk(2, 1, 1)], blocks=[grant(2, [5], first=1)]))
    with pytest.raises(InvariantError, match=r"writes block 5 .* but sequence 2, at rest, holds it"):
        roster.apply(plan(3, [chunk(1, 2, 1)]))


def test_a_cancelled_chunk_in_a_new_block_leaves_the_one_before_to_be_written() -> None:
    roster = Roster(8, [FULL])
    run(roster, plan(0, [chunk(1, 0, 3)], roster=[join(1)], blocks=[grant(1, [5, 6])]))
    gone = plan(1, [chunk(1, 3, 2)])
    roster.apply(gone)
    roster.settle(result(gone, [0], SeqStatus.CANCELLED))
    run(roster, plan(2, [chunk(1, 3, 1)]))
    run(roster, plan(3, [chunk(2, 4, 1)], roster=[join(2)], blocks=[grant(2, [5, 7])]))
    assert roster.seat(SeqId(2)).num_slots == 5


class _Twins:
    """Two rosters that see the same plans; one forgets before each what its sequences' last blocks are."""

    def __init__(self, groups: Sequence[GroupSlots]) -> None:
        self.quick, self.thorough = Roster(4, groups), Roster(4, groups)

    def apply(self, made: StepPlan, seqs: Sequence[int]) -> str | None:
        for seq in seqs:
            self.thorough.seat(SeqId(seq)).tail = None
        faults = [_fault(lambda: self.quick.apply(made)), _fault(lambda: self.thorough.apply(made))]
        assert faults[0] == faults[1]
        return faults[0]

    def settle(self, made: StepResult) -> None:
        self.quick.settle(made)
        self.thorough.settle(made)
        assert self.quick._written == self.thorough._written
        # Of those who stay in their last block the quick one notes nothing: holders say who may write.
        assert self.quick._writers.keys() <= self.thorough._writers.keys()


def _fault(act: Callable[[], object]) -> str | None:
    try:
        act()
    except InvariantError as fault:
        return str(fault)
    return None


@pytest.mark.parametrize("groups", [[MANY], [MANY, replace(MANY, visibility=window(6), tokens_per_block=2)]])
def test_what_is_remembered_of_the_last_block_changes_no_verdict(groups: list[GroupSlots]) -> None:
    """Random decode and prompt chunks, two steps in flight, cancels, and now and then a block of somebody else."""
    faults = 0
    for seed in range(150):
        random = Random(seed)
        twins = _Twins(groups)
        starts = dict.fromkeys(range(3), 0)
        free = [list(range(500)) for _ in groups]
        held: list[list[list[int]]] = [[[] for _ in groups] for _ in starts]
        waiting: list[StepPlan] = []
        for step in range(30):
            if len(waiting) == 2 or (waiting and random.random() < 0.3):
                done = waiting.pop(0)
                twins.settle(result(done))
            chunks, grants = [], []
            for seq in random.sample(sorted(starts), random.randint(1, 3)):
                made = chunk(seq, starts[seq], random.choice([1, 1, 1, 1, 5]))
                starts[seq] = made.end
                chunks.append(made)
                for index, group in enumerate(groups):
                    mine = held[seq][index]
                    count = -(-made.end // group.tokens_per_block) - len(mine)
                    blocks = [free[index].pop() for _ in range(count)]
                    others = held[(seq + 1) % 3][index]
                    if blocks and others and random.random() < 0.02:
                        blocks[0] = others[-1]
                    if blocks:
                        grants.append(grant(seq, blocks, len(mine), index))
                        mine += blocks
            roster = [join(seq) for seq in starts] if step == 0 else []
            made_plan = plan(step, chunks, roster=roster, blocks=grants)
            if twins.apply(made_plan, [] if step == 0 else list(starts)) is not None:
                faults += 1
                break
            waiting.append(made_plan)
    assert 0 < faults < 150


def test_imported_slots_are_there_from_the_first_step_on() -> None:
    roster = Roster(8, [FULL])
    brought = replace(join(1), num_imported=6)
    run(roster, plan(0, [chunk(1, 6, 1)], roster=[brought], blocks=[grant(1, [0, 1])]))
    assert roster.seat(SeqId(1)).num_computed == 7
    # Whoever is granted the same block may rely on it.
    run(roster, plan(1, [chunk(2, 4, 1)], roster=[join(2)], blocks=[grant(2, [0, 5])]))


def test_imported_slots_need_blocks() -> None:
    roster = Roster(8, [FULL])
    brought = replace(join(1), num_imported=6)
    with pytest.raises(InvariantError, match="joins with 6 imported tokens, for which group 0 has no room"):
        roster.apply(plan(0, [chunk(1, 6, 1)], roster=[brought], blocks=[grant(1, [0])]))
