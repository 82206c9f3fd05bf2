"""Two steps in flight: what is planned before a token is known, and what becomes of what was planned for nothing."""

from __future__ import annotations

from collections.abc import Sequence as AnySequence

import pytest
from tests.unit.sched.kit import EOS, Stage, chunks, next_token

from plait.core.decision import Blocked, Cancel
from plait.core.errors import InvariantError
from plait.core.events import Preempted
from plait.core.ids import SeqId
from plait.core.request import FinishReason, SeqState
from plait.core.sampling import SamplingParams
from plait.core.step import FROM_DEVICE, Chunk, Join, Leave, StepPlan


def planned(stage: Stage) -> StepPlan:
    plan = stage.plan()
    assert plan is not None
    return plan


def ends_at(position: int) -> Stage:
    """Two steps in flight, and the end-of-sequence token of the first who comes at a position."""
    return Stage(
        queue_depth=2,
        answer=lambda chunk: EOS if chunk.end == position and chunk.seq == SeqId(0) else next_token(chunk),
    )


def test_a_step_is_planned_behind_the_one_in_flight_and_no_more() -> None:
    stage = Stage(queue_depth=2)
    seq = stage.arrive([1, 2, 3])
    first, second = planned(stage), planned(stage)
    assert (chunks(first), chunks(second)) == ([(0, 0, 3)], [(0, 3, 1)])
    assert second.chunks[0].tokens is FROM_DEVICE
    assert second.chunks[0].num_outputs == 1
    assert stage.plan() is None
    assert (seq.num_computed, seq.num_scheduled, seq.num_uncomputed, len(seq.tokens)) == (0, 4, -1, 3)
    stage.finish(first)
    assert (seq.num_computed, seq.num_scheduled, seq.num_uncomputed, len(seq.tokens)) == (3, 1, 0, 4)
    assert chunks(planned(stage)) == [(0, 4, 1)]


def test_as_many_steps_as_the_device_takes() -> None:
    stage = Stage(queue_depth=4)
    seq = stage.arrive([1, 2, 3], max_tokens=9)
    assert [chunks(planned(stage)) for _ in range(4)] == [[(0, 0, 3)], [(0, 3, 1)], [(0, 4, 1)], [(0, 5, 1)]]
    assert stage.plan() is None
    assert seq.num_scheduled == 6


def test_a_known_token_is_sent_and_an_unknown_one_is_not() -> None:
    stage = Stage(queue_depth=2)
    stage.arrive([1, 2, 3], max_tokens=9)
    first, second = planned(stage), planned(stage)
    stage.finish(first)
    stage.finish(second)
    assert planned(stage).chunks[0].tokens == (1_004,)
    assert planned(stage).chunks[0].tokens is FROM_DEVICE


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_nothing_is_planned_behind_the_token_that_is_certain_to_be_the_last(max_tokens: int) -> None:
    stage = Stage(queue_depth=3)
    stage.arrive([1, 2, 3], max_tokens=max_tokens)
    plans = [planned(stage) for _ in range(max_tokens)]
    assert stage.plan() is None
    assert [plan.chunks[0].end for plan in plans] == [3 + place for place in range(max_tokens)]


def test_what_is_planned_behind_an_end_is_cancelled_and_counts_for_nothing() -> None:
    stage = ends_at(5)
    seq, other = stage.arrive([1, 2, 3], max_tokens=20), stage.arrive([1, 2], max_tokens=20)
    stage.finish(planned(stage))
    first, second = planned(stage), planned(stage)
    stage.finish(first)
    stage.plan()
    assert stage.cancels == []
    third = stage.plans[-1]
    stage.finish(second)
    assert stage.updates[-2].finish_reason is FinishReason.STOP
    assert stage.kv.num_quarantined == 1
    fourth = planned(stage)
    assert stage.cancels == [Cancel(third.step, (seq.id,))]
    assert fourth.roster == (Leave(seq.id),)
    assert [chunk.seq for chunk in fourth.chunks] == [other.id]
    stage.finish(third)
    assert stage.kv.num_quarantined == 0
    assert stage.output(seq) == [1_003, 1_004, EOS]
    assert seq.num_output == 3
    assert other.state is SeqState.RUNNING


def test_a_cancel_that_comes_too_late_is_not_told() -> None:
    stage = ends_at(3)
    seq = stage.arrive([1, 2, 3], max_tokens=20)
    first, second = planned(stage), planned(stage)
    stage.finish(first)
    stage.finish(second)
    assert stage.plan() is None
    assert stage.cancels == []
    assert stage.output(seq) == [EOS]


@pytest.mark.parametrize("obeys", [True, False])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=9),
        SamplingParams(max_tokens=9, ignore_eos=True),
        SamplingParams(max_tokens=9, min_tokens=6),
        SamplingParams(max_tokens=9, stop_token_ids=(1_006,), ignore_eos=True),
        SamplingParams(max_tokens=9, repetition_penalty=1.2),
        SamplingParams(max_tokens=1),
    ],
)
def test_answers_do_not_depend_on_how_many_steps_are_in_flight(sampling: SamplingParams, obeys: bool) -> None:
    def answer(chunk: Chunk) -> int:
        return EOS if chunk.end % 8 == 0 else next_token(chunk)

    outputs = []
    for depth in (1, 2, 3):
        stage = Stage(queue_depth=depth, max_step_tokens=5, answer=answer)
        sequences = [stage.arrive([*range(length), 50 + length], sampling=sampling) for length in (1, 3, 6, 9)]
        stage.run(obeys=obeys)
        outputs.append([stage.output(seq) for seq in sequences])
        assert all(seq.num_output == len(stage.output(seq)) for seq in sequences)
        stage.kv.reset_prefix_index()
        assert stage.kv.usage().free_bytes == stage.kv.usage().total_bytes
    assert outputs[0] == outputs[1] == outputs[2]


def test_one_who_came_back_after_a_preemption_is_planned_ahead_with_his_history() -> None:
    penalized = SamplingParams(max_tokens=12, frequency_penalty=0.5)
    stage = Stage(num_blocks=7, queue_depth=2)
    sequences = [stage.arrive([10 * n + 1, 10 * n + 2, 10 * n + 3], sampling=penalized) for n in range(3)]
    stage.run()
    preempted = [event.seq for event in stage.events if isinstance(event, Preempted)]
    assert preempted
    assert 0 not in preempted, "the oldest never leaves"
    for plan in stage.plans:
        for join in plan.roster:
            if isinstance(join, Join):
                (chunk,) = [chunk for chunk in plan.chunks if chunk.seq == join.seq]
                assert join.history == tuple(sequences[join.seq].tokens[: chunk.start])
    assert all(stage.output(seq) == [1_000 + place for place in range(3, 15)] for seq in sequences)


def test_when_memory_is_short_the_youngest_rests_and_leaves_when_no_step_names_it() -> None:
    stage = Stage(num_blocks=5, queue_depth=2, max_rows=2)
    old, young = stage.arrive([1, 2, 3], max_tokens=16), stage.arrive([11, 12, 13], max_tokens=16)
    queue = [planned(stage), planned(stage)]
    while len(queue[-1].chunks) == 2:
        stage.finish(queue.pop(0))
        queue.append(planned(stage))
    assert [chunk.seq for chunk in queue[-1].chunks] == [old.id]
    assert young.state is SeqState.RUNNING, "a step in flight names it"
    assert not [event for event in stage.events if isinstance(event, Preempted)]
    stage.finish(queue.pop(0))
    stage.plan()
    assert young.state is SeqState.PREEMPTED
    assert [event.seq for event in stage.events if isinstance(event, Preempted)] == [young.id]


def test_nobody_leaves_while_the_memory_of_one_who_has_ended_is_on_its_way() -> None:
    stage = Stage(
        num_blocks=7, queue_depth=2, answer=lambda chunk: EOS if chunk.seq == SeqId(0) and chunk.end == 8 else 1
    )
    ends, old, young = (stage.arrive([10 * n, 10 * n + 1, 10 * n + 2], max_tokens=12) for n in range(3))
    queue = [planned(stage), planned(stage)]
    while len(queue[-1].chunks) == 3:
        stage.finish(queue.pop(0))
        queue.append(planned(stage))
    assert [chunk.seq for chunk in queue[-1].chunks] == [ends.id], "one block was left, two are short of one"
    stage.finish(queue.pop(0))
    assert (ends.state, young.num_scheduled) == (SeqState.FINISHED, 0)
    assert stage.plan() is None
    assert young.state is SeqState.RUNNING, "it could leave now, but need not"
    stage.finish(queue.pop(0), cancelled=[ends.id])
    assert [chunk.seq for chunk in planned(stage).chunks] == [old.id, young.id]
    assert not [event for event in stage.events if isinstance(event, Preempted)]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [6, 7, 9, 12])
def test_short_memory_changes_no_answer_and_stops_nobody_for_ever(num_blocks: int, depth: int) -> None:
    stage = Stage(num_blocks=num_blocks, queue_depth=depth, max_step_tokens=6)
    sequences = [stage.arrive(range(7 * n, 7 * n + 1 + n % 6), max_tokens=3 + 5 * (n % 4)) for n in range(9)]
    stage.run()
    for seq in sequences:
        start = len(seq.request.prompt)
        assert stage.output(seq) == [1_000 + place for place in range(start, start + seq.max_output_tokens)]
    stage.kv.reset_prefix_index()
    assert stage.kv.usage().free_bytes == stage.kv.usage().total_bytes


def test_everybody_who_runs_is_in_every_step() -> None:
    stage = Stage(num_blocks=64, queue_depth=2, max_rows=8, max_step_tokens=64)
    for n in range(3):
        stage.arrive([n, n], max_tokens=30)
    queue = [planned(stage), planned(stage)]
    for n in range(3, 8):
        stage.arrive([n, n], max_tokens=30)
    sizes = [3, 3]
    for _ in range(10):
        stage.finish(queue.pop(0))
        queue.append(planned(stage))
        sizes.append(len(queue[-1].chunks))
    assert sizes == [3, 3, *[8] * 10]


@pytest.mark.parametrize("depth", [1, 2])
def test_more_sequences_than_a_step_has_tokens_go_on_in_order(depth: int) -> None:
    stage = Stage(queue_depth=depth, max_step_tokens=2, max_rows=4)
    sequences = [stage.arrive([n], max_tokens=4) for n in range(4)]
    long = stage.arrive(range(50, 59), max_tokens=1)
    stage.run()
    assert all(len(stage.output(seq)) == 4 for seq in sequences)
    assert len(stage.output(long)) == 1
    assert all(sum(chunk.num_tokens for chunk in plan.chunks) <= 2 for plan in stage.plans)


def test_two_prompts_share_what_is_left_and_the_first_goes_first() -> None:
    stage = Stage(queue_depth=2, max_step_tokens=12, max_rows=4)
    stage.arrive(range(20), cache_prefix=False)
    assert chunks(stage.plan()) == [(0, 0, 12)]
    stage.arrive(range(30, 50), cache_prefix=False)
    assert chunks(stage.plan()) == [(0, 12, 8), (1, 0, 4)]
    stage.finish(stage.plans[0])
    assert chunks(stage.plan()) == [(0, 20, 1), (1, 4, 11)]


def test_nobody_joins_while_the_device_has_enough_to_do() -> None:
    stage = Stage(queue_depth=2)
    stage.arrive([1, 2, 3])
    first, _ = planned(stage), planned(stage)
    stage.arrive([4, 5, 6])
    assert stage.plan() is None
    stage.finish(first)
    assert chunks(planned(stage)) == [(0, 4, 1), (1, 0, 3)]


def test_one_who_fails_in_a_step_is_cancelled_in_the_next() -> None:
    stage = Stage(queue_depth=2)
    bad, good = stage.arrive([1, 2]), stage.arrive([3, 4])
    first, second = planned(stage), planned(stage)
    stage.finish(first, failed=[bad.id])
    stage.plan()
    assert stage.cancels == [Cancel(second.step, (bad.id,))]
    stage.finish(second, cancelled=[bad.id])
    assert len(stage.output(good)) == 2
    assert stage.output(bad) == []


def test_a_cancel_that_nobody_asked_for_is_a_fault_of_the_device() -> None:
    stage = Stage(queue_depth=2)
    seq = stage.arrive([1, 2])
    plan = planned(stage)
    with pytest.raises(InvariantError, match="step 0 cancelled sequence 0, but nobody asked for it"):
        stage.finish(plan, cancelled=[seq.id])


# A copied beginning of a block


def warm(stage: Stage, prompt: AnySequence[int]) -> None:
    """Leave the full blocks of a prompt in the index."""
    stage.arrive(prompt, max_tokens=1)
    stage.run()


def test_a_partly_matched_block_is_copied_by_the_step_that_joins() -> None:
    stage = Stage(queue_depth=2)
    warm(stage, range(8))
    seq = stage.arrive([0, 1, 2, 3, 4, 5, 96, 97, 98], max_tokens=3)
    plan = planned(stage)
    (move,) = plan.moves
    assert (move.src_slot, move.dst_slot, move.num_tokens) == (0, 0, 2)
    assert plan.blocks[0].blocks[1] == move.dst_block != move.src_block
    assert chunks(plan) == [(1, 6, 3)]
    assert seq.num_cached == 6
    assert (seq.num_computed, seq.num_scheduled) == (4, 5), "a copy is in flight like everything else"
    behind = planned(stage)
    assert (behind.moves, chunks(behind)) == ((), [(1, 9, 1)])
    stage.finish(plan)
    assert (seq.num_computed, seq.num_scheduled) == (9, 1)
    stage.finish(behind)
    stage.run()
    assert stage.output(seq) == [1_009, 1_010, 1_011]
    stage.arrive([0, 1, 2, 3, 4, 5, 96, 97, 50])
    assert chunks(stage.plan()) == [(2, 8, 1)], "the copy was published with what was computed behind it"


def test_a_step_that_copies_and_is_cancelled_leaks_nothing() -> None:
    stage = Stage(queue_depth=2)
    warm(stage, range(8))
    seq = stage.arrive([0, 1, 2, 3, 4, 5, 96])
    plan = planned(stage)
    stage.scheduler.abort(seq.id, stage.now)
    stage.plan()
    assert stage.kv.reset_prefix_index() == 0, "the step reads what it copies from"
    stage.finish(plan, cancelled=[seq.id])
    assert stage.kv.reset_prefix_index() == 2
    assert stage.kv.usage().free_bytes == stage.kv.usage().total_bytes


def test_a_step_that_copies_and_fails_leaks_nothing() -> None:
    stage = Stage(queue_depth=2)
    warm(stage, range(8))
    seq = stage.arrive([0, 1, 2, 3, 4, 5, 96])
    first, second = planned(stage), planned(stage)
    stage.finish(first, failed=[seq.id])
    stage.finish(second, cancelled=[seq.id])
    stage.run()
    stage.kv.reset_prefix_index()
    assert stage.kv.usage().free_bytes == stage.kv.usage().total_bytes


def test_where_there_is_no_room_for_a_copy_beside_its_source_it_is_computed() -> None:
    stage = Stage(num_blocks=4)
    warm(stage, range(8))
    seq = stage.arrive([0, 1, 2, 3, 4, 5, *range(90, 99)], max_tokens=1)
    plan = planned(stage)
    assert (plan.moves, chunks(plan), seq.num_cached) == ((), [(1, 4, 11)], 4)


def test_one_who_does_not_fit_even_without_a_copy_waits() -> None:
    stage = Stage(num_blocks=6, queue_depth=1)
    warm(stage, range(8))
    stage.arrive(range(50, 58), max_tokens=4)
    stage.step()
    stage.arrive([0, 1, 2, 3, 4, 5, *range(90, 99)], max_tokens=1)
    stage.plan()
    assert stage.scheduler.blocked is Blocked.BY_MEMORY
    assert stage.scheduler.num_waiting == 1


def test_one_who_waits_for_half_a_block_takes_it_when_it_is_there() -> None:
    stage = Stage(max_step_tokens=64)
    stage.arrive([1, 2, 3, 4, 5, 6, 7, 8, 9])
    stage.arrive([1, 2, 3, 4, 5, 6, 70, 80, 90])
    assert chunks(stage.step()) == [(0, 0, 9)]
    assert stage.scheduler.blocked is Blocked.BY_PREFIX
    assert chunks(stage.plan()) == [(0, 9, 1), (1, 6, 3)]
    assert stage.sequences[SeqId(1)].num_cached == 6
