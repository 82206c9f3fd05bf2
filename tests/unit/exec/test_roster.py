"""The roster against plans that a correct scheduler makes, and against each way in which a wrong one breaks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
    two = [replace(chunk(seq, 0, 2), snapshots=snapshot) for seq in (1, 2)]
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
