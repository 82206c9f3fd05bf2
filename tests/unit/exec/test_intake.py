"""The intake: what every executor refuses before it runs anything, and what it forgets when results are handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from plait.core.errors import InvariantError
from plait.core.executor import ExecutorInfo, StepForm
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    FROM_DEVICE,
    SAMPLES_ONE,
    BlockGrant,
    Chunk,
    Join,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
    StepStatus,
)
from plait.exec.intake import Intake
from plait.exec.roster import GroupSlots

D, P = LaneId(0), LaneId(1)
INFO = ExecutorInfo(
    name="any",
    lanes=(D, P),
    share_units=3,
    forms=(StepForm.FUSED,),
    queue_depth=2,
    max_step_tokens=10,
    max_rows=4,
    memory_bytes=0,
    formats=(),
    fingerprint="any",
    bit_exact=False,
)


def intake() -> Intake:
    return Intake(INFO, [GroupSlots(num_blocks=8, tokens_per_block=16)])


def plan(step: int, lane: LaneId = D, num_tokens: int = 4) -> StepPlan:
    """A new sequence of its own in every step."""
    seq = SeqId(step)
    join = Join(seq, step, SamplingParams(), seed=0, choice=0, num_prompt=1)
    chunk = Chunk(seq, 0, num_tokens, (7,) * num_tokens)
    return StepPlan(StepId(step), lane, (join,), (BlockGrant(seq, GroupId(0), 0, (BlockId(step),)),), (), (chunk,))


def result(made: StepPlan) -> StepResult:
    seqs = tuple(SeqResult(chunk.seq, SeqStatus.OK, chunk.num_tokens) for chunk in made.chunks)
    return StepResult(made.step, made.lane, StepStatus.COMPLETED, 0.0, 1.0, 1, seqs)


def test_a_sound_plan_gives_the_seats_of_its_chunks() -> None:
    (seat,) = intake().submit(plan(0))
    assert (seat.seq, seat.row, seat.tables, seat.lane) == (0, 0, [[0]], D)


def test_a_lane_is_full_until_results_are_handed_out_and_the_other_is_not() -> None:
    door = intake()
    first = plan(0)
    door.submit(first)
    door.submit(plan(1))
    with pytest.raises(InvariantError, match="lane 0 has 2 steps submitted and not collected; step 2 is one too many"):
        door.submit(plan(2))
    door.submit(plan(2, lane=P))
    door.collect([result(first)])
    door.submit(plan(3))


def a_run(step: int) -> StepPlan:
    chunk = Chunk(SeqId(step), 4, 2, FROM_DEVICE, None, SAMPLES_ONE)
    return StepPlan(StepId(step), LaneId(0), (), (), (), (chunk,), num_steps=2)


REFUSED: Mapping[str, StepPlan] = {
    "step 5 is submitted after step 5; ids must ascend": plan(5),
    "step 4 is submitted after step 5": plan(4, lane=P),
    "lane 7 does not exist": plan(6, lane=LaneId(7)),
    "step 6 has 11 tokens; the executor takes 10": plan(6, num_tokens=11),
    "step 6 runs program 'draft'; only 'step' is loaded": replace(plan(6), program="draft"),
    "3 known and 0 draft tokens but num_tokens 4": replace(plan(6), chunks=(Chunk(SeqId(6), 0, 4, (7,) * 3),)),
    "step 6 begins a run of 2 steps; this executor takes them one by one": a_run(6),
    "rows go from 0 to 3": plan(6),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_breaks_a_rule_is_refused(message: str) -> None:
    door = intake()
    door.submit(replace(plan(1), step=StepId(5)))
    with pytest.raises(InvariantError, match=message):
        door.submit(REFUSED[message])


def test_what_only_this_executor_cannot_do_is_refused_before_the_roster_sees_it() -> None:
    def nothing_long(made: StepPlan) -> str | None:
        return "too long" if made.chunks[0].num_tokens > 5 else None

    door = Intake(INFO, [GroupSlots(num_blocks=8, tokens_per_block=16)], nothing_long)
    with pytest.raises(InvariantError, match="too long"):
        door.submit(plan(0, num_tokens=6))
    door.submit(plan(0, num_tokens=5))


def test_a_refused_plan_takes_no_place_and_no_number() -> None:
    door = intake()
    for _ in range(3):
        with pytest.raises(InvariantError, match="11 tokens"):
            door.submit(plan(0, num_tokens=11))
    door.submit(plan(0))
    door.submit(plan(1))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({D: (0, 1), P: (1, 2)}, "not disjoint sets of units 0 to 2"),
        ({D: (0, 3), P: ()}, "units 0 to 2"),
        ({D: (-1,), P: ()}, "units 0 to 2"),
        ({D: (0,)}, "must name all"),
        ({D: (0,), P: (), LaneId(7): ()}, "must name all"),
    ],
)
def test_shares_are_disjoint_and_for_all_lanes(shares: dict[LaneId, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        intake().check_shares(shares)


@pytest.mark.parametrize("shares", [{D: (), P: ()}, {D: (2, 0), P: (1,)}, {P: (0, 1, 2), D: ()}])
def test_units_may_be_in_any_order_and_some_may_rest(shares: dict[LaneId, tuple[int, ...]]) -> None:
    intake().check_shares(shares)


def test_a_lane_is_suspended_and_resumed_in_turn() -> None:
    door = intake()
    door.suspend(D)
    door.suspend(P)
    with pytest.raises(InvariantError, match="lane 0 is suspended already"):
        door.suspend(D)
    door.resume(D)
    with pytest.raises(InvariantError, match="lane 0 is resumed but was not suspended"):
        door.resume(D)
    door.suspend(D)
    with pytest.raises(InvariantError, match="lane 9 does not exist"):
        door.suspend(LaneId(9))
