"""Every control verb on every executor: what must move, what must rest, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.conformance.executors import EXECUTORS
from tests.conformance.scene import (
    BLOCK,
    FIRST,
    PROMPT,
    SECOND,
    Scene,
    blocks_of,
    joined,
    next_chunk,
    prompt_chunk,
    result_of,
)

from plait.core.errors import InvariantError
from plait.core.executor import Executor
from plait.core.ids import GroupId, LaneId, SeqId, StepId
from plait.core.step import Move, SeqResult, SeqStatus, StepStatus

A_WHILE = 300
"""Turns in which every executor ends a small step that may move."""


@pytest.fixture(params=EXECUTORS)
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(request.param)


def test_it_says_what_it_can_do(scene: Scene) -> None:
    executor: Executor = scene.executor
    info = executor.info
    assert info.lanes == (FIRST, SECOND)
    assert info.share_units >= len(info.lanes)
    assert info.queue_depth == 2
    assert info.fingerprint
    assert executor.collect() == []


def test_until_shares_are_assigned_the_first_lane_has_them_all(scene: Scene) -> None:
    second, first = scene.start(1, lane=SECOND), scene.start(2)
    assert scene.wait(first).status is StepStatus.COMPLETED
    assert second not in scene.collect(A_WHILE)
    scene.share()
    assert result_of(1, scene.wait(second)).tokens == (scene.right_token(1, PROMPT),)


def test_a_suspended_lane_rests_while_the_other_goes_on(scene: Scene) -> None:
    scene.share()
    scene.executor.suspend(SECOND)
    parked, first = scene.start(1, lane=SECOND), scene.start(2)
    scene.wait(first)
    assert parked not in scene.collect(A_WHILE)
    scene.executor.resume(SECOND)
    assert result_of(1, scene.wait(parked)).tokens == (scene.right_token(1, PROMPT),)


def test_a_step_parked_half_way_goes_on_where_it_was(scene: Scene) -> None:
    scene.share()
    parked = scene.start(1)
    scene.collect(turns=7)
    scene.executor.suspend(FIRST)
    other = scene.start(2, lane=SECOND)
    assert result_of(2, scene.wait(other)).tokens == (scene.right_token(2, PROMPT),)
    scene.executor.resume(FIRST)
    assert result_of(1, scene.wait(parked)).tokens == (scene.right_token(1, PROMPT),)


def test_a_lane_without_units_rests_until_it_gets_some(scene: Scene) -> None:
    scene.executor.assign({FIRST: (), SECOND: (0, 1)})
    starved, fed = scene.start(1), scene.start(2, lane=SECOND)
    scene.wait(fed)
    assert starved not in scene.collect(A_WHILE)
    scene.executor.assign({FIRST: (1,), SECOND: (0,)})
    assert scene.wait(starved).status is StepStatus.COMPLETED


def test_steps_of_a_lane_end_in_order_and_results_say_so(scene: Scene) -> None:
    first, second = scene.start(1), scene.start(2)
    later = scene.wait(second)
    earlier = scene.collect()[first]
    assert earlier.start_s <= earlier.end_s <= later.start_s <= later.end_s
    assert earlier.workers >= 1


def test_a_full_queue_is_an_error_until_a_step_was_collected(scene: Scene) -> None:
    first, second = scene.start(1), scene.start(2)
    for _ in range(A_WHILE):  # both may have ended; nobody has collected them
        scene.bench.advance()
    third = scene.plan(prompt_chunk(3), joins=[joined(3)])
    with pytest.raises(InvariantError, match="lane 0 has 2 steps"):
        scene.executor.submit(third)
    scene.wait(first)
    scene.wait(second)
    scene.executor.submit(third)
    assert scene.wait(third.step).status is StepStatus.COMPLETED


def test_a_queued_step_takes_its_token_from_the_step_before_it(scene: Scene) -> None:
    start, behind = scene.start(1), scene.submit(next_chunk(1, len(PROMPT)))
    token = scene.right_token(1, PROMPT)
    assert result_of(1, scene.wait(behind)).tokens == (scene.right_token(1, [*PROMPT, token]),)
    assert result_of(1, scene.collect()[start]).tokens == (token,)


def test_ready_says_whether_collect_has_something(scene: Scene) -> None:
    assert not scene.executor.ready()
    step = scene.start(1)
    scene.wait_ready()
    assert step in scene.collect()
    assert not scene.executor.ready()


# Cancelling


def test_a_step_without_live_chunks_ends_as_cancelled(scene: Scene) -> None:
    scene.share()
    scene.executor.suspend(FIRST)
    step = scene.start(1, 2)
    scene.executor.cancel(step, [SeqId(2), SeqId(1)])
    scene.executor.resume(FIRST)
    result = scene.wait(step)
    assert result.status is StepStatus.CANCELLED
    assert result.seqs == (SeqResult(SeqId(1), SeqStatus.CANCELLED), SeqResult(SeqId(2), SeqStatus.CANCELLED))


def test_a_parked_step_that_is_cancelled_gives_its_memory_back_at_once(scene: Scene) -> None:
    scene.share()
    parked = scene.start(1)
    scene.executor.suspend(FIRST)
    scene.executor.cancel(parked, [SeqId(1)])
    assert scene.wait(parked).step == parked


def test_one_cancelled_chunk_changes_nothing_for_the_others(scene: Scene) -> None:
    scene.share()
    scene.executor.suspend(FIRST)
    step = scene.start(1, 2, 3)
    scene.executor.cancel(step, [SeqId(2)])
    scene.executor.resume(FIRST)
    result = scene.wait(step)
    assert result.status is StepStatus.COMPLETED
    assert [one.status for one in result.seqs] == [SeqStatus.OK, SeqStatus.CANCELLED, SeqStatus.OK]
    assert result_of(1, result).tokens == (scene.right_token(1, PROMPT),)
    assert result_of(3, result).tokens == (scene.right_token(3, PROMPT),)


def test_a_cancelled_chunk_can_be_computed_again(scene: Scene) -> None:
    scene.share()
    scene.executor.suspend(FIRST)
    step = scene.start(1)
    scene.executor.cancel(step, [SeqId(1)])
    scene.wait(step)
    scene.executor.resume(FIRST)
    again = scene.submit(prompt_chunk(1))
    assert result_of(1, scene.wait(again)).tokens == (scene.right_token(1, PROMPT),)


def test_cancelling_what_is_unknown_or_over_is_ignored(scene: Scene) -> None:
    step = scene.start(1)
    scene.executor.cancel(StepId(99), [SeqId(1)])
    scene.executor.cancel(step, [SeqId(77)])
    assert scene.wait(step).status is StepStatus.COMPLETED
    scene.executor.cancel(step, [SeqId(1)])
    assert scene.executor.collect() == []


def test_moves_are_made_even_if_every_chunk_is_cancelled(scene: Scene) -> None:
    """The sequence they were made for goes on from the moved tokens, and its next plan does not move them again."""
    scene.share()
    scene.wait(scene.start(1))
    scene.executor.suspend(FIRST)
    kept = BLOCK + 3
    moves = [Move(GroupId(0), blocks_of(1)[at], 0, blocks_of(2)[at], 0, n) for at, n in ((0, BLOCK), (1, 3))]
    step = scene.submit(prompt_chunk(2, kept), joins=[joined(2)], moves=moves)
    scene.executor.cancel(step, [SeqId(2)])
    assert scene.wait(step).status is StepStatus.CANCELLED
    scene.executor.resume(FIRST)
    again = scene.submit(prompt_chunk(2, kept))
    assert result_of(2, scene.wait(again)).tokens == (scene.right_token(2, PROMPT),)


# Rosters and the end


def test_a_step_that_only_changes_the_roster_is_completed(scene: Scene) -> None:
    scene.wait(scene.start(1))
    result = scene.wait(scene.leave(1))
    assert (result.status, result.seqs) == (StepStatus.COMPLETED, ())


def test_a_sequence_that_left_joins_again_and_starts_anew(scene: Scene) -> None:
    scene.wait(scene.start(1))
    scene.wait(scene.leave(1))
    assert result_of(1, scene.wait(scene.start(1))).tokens == (scene.right_token(1, PROMPT),)


def test_closing_abandons_what_is_in_flight_and_does_not_hang(scene: Scene) -> None:
    scene.start(1)
    scene.start(2)
    scene.executor.close()


REFUSED_SHARES: Mapping[str, Mapping[LaneId, tuple[int, ...]]] = {
    "two lanes get one unit": {FIRST: (0,), SECOND: (0, 1)},
    "a unit that there is not": {FIRST: (0, 99), SECOND: ()},
    "a negative unit": {FIRST: (-1,), SECOND: ()},
    "a lane is left out": {FIRST: (0,)},
    "a lane that there is not": {FIRST: (0,), SECOND: (1,), LaneId(9): ()},
}


@pytest.mark.parametrize("what", REFUSED_SHARES)
def test_shares_that_make_no_sense_are_refused(scene: Scene, what: str) -> None:
    with pytest.raises(InvariantError):
        scene.executor.assign(REFUSED_SHARES[what])


def test_suspending_has_one_level(scene: Scene) -> None:
    with pytest.raises(InvariantError):
        scene.executor.resume(FIRST)
    scene.executor.suspend(FIRST)
    with pytest.raises(InvariantError):
        scene.executor.suspend(FIRST)
    with pytest.raises(InvariantError):
        scene.executor.suspend(LaneId(9))
