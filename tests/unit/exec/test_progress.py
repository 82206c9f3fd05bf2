"""Lanes under random verbs: no step is lost, repeated, reordered or made faster than it can be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import FROM_DEVICE, SAMPLES_ONE, Chunk, ChunkShape, Join, Leave, Snapshot, StepPlan, StepShape
from plait.exec.progress import Lane, LaneStep, Progress

LANES = (LaneId(0), LaneId(1))
UNITS = 4


def price(shape: StepShape, share: int, beside: Sequence[StepShape]) -> float:
    """One second per token and unit; half as fast again beside another step."""
    return shape.num_tokens / share * (1.5 if beside else 1.0)


def plan(step: int, lane: LaneId, *num_tokens: int) -> StepPlan:
    chunks = tuple(Chunk(SeqId(100 * step + place), 0, n, (1,) * n) for place, n in enumerate(num_tokens))
    return StepPlan(StepId(step), lane, (), (), (), chunks)


def progress(quanta: int = 8) -> Progress:
    return Progress({LANES[0]: Lane((0, 1)), LANES[1]: Lane((2, 3))}, price, quanta)


def drain(lanes: Progress) -> None:
    while (end_s := lanes.next_end_s()) is not None:
        lanes.advance(end_s)


def test_a_change_is_not_felt_before_the_quantum_ends_but_a_neighbour_is() -> None:
    lanes = progress(quanta=2)
    lanes.push(plan(0, LANES[0], 8), 0.0)  # 4 s alone, halves of 2 s
    lanes.advance(1.0)
    lanes.push(plan(1, LANES[1], 2), 1.0)  # beside each other: 8 tokens take 6 s, 2 take 1.5 s
    # A quarter is done at 1.0, another quarter at 2.5; then the neighbour has ended and half is left: 2 s.
    drain(lanes)
    assert [(one.plan.step, one.end_s) for one in lanes.ended] == [(1, 2.5), (0, 4.5)]


def test_a_look_ahead_changes_nothing() -> None:
    lanes = progress(quanta=4)
    lanes.push(plan(0, LANES[0], 8), 0.0)
    lanes.advance(0.5)
    lanes.assign({LANES[0]: (0,), LANES[1]: (1,)}, 0.5)
    assert lanes.next_end_s() == lanes.next_end_s() == 1.0 + 0.75 * 8
    assert lanes.lane(LANES[0]).units == (0, 1)
    assert lanes.ended == []


def test_a_step_without_chunks_ends_at_once() -> None:
    lanes = progress()
    lanes.push(plan(0, LANES[0]), 3.0)
    lanes.advance(3.0)
    (ended,) = lanes.ended
    assert (ended.start_s, ended.end_s, ended.is_dead) == (3.0, 3.0, False)


@pytest.mark.parametrize("quanta", [1, 3, 1000])
def test_suspending_for_a_while_moves_the_end_by_what_was_not_run(quanta: int) -> None:
    lanes = progress(quanta)
    lanes.push(plan(0, LANES[0], 8), 0.0)
    lanes.advance(1.0)
    lanes.suspend(LANES[0], True, 1.0)
    lanes.advance(100.0)
    stopped_s = {1: 4.0, 3: 4.0 / 3.0, 1000: 1.0}[quanta]
    lanes.suspend(LANES[0], False, 100.0)
    drain(lanes)
    expected_s = 4.0 if stopped_s == 4.0 else 100.0 + 4.0 - stopped_s
    assert lanes.ended[0].end_s == pytest.approx(expected_s)


def grow(step: int, start: int, roster: tuple[Join | Leave, ...] = ()) -> StepPlan:
    """The next token of one sequence on the first lane."""
    return StepPlan(StepId(step), LANES[0], roster, (), (), (Chunk(SEQ, start, 1, (1,)),))


SEQ = SeqId(7)
AGAIN = (Leave(SEQ), Join(SEQ, 0, SamplingParams(), seed=0, choice=0, num_prompt=1))


def test_what_is_queued_behind_a_cancelled_chunk_is_cancelled_when_that_is() -> None:
    lanes = progress(quanta=2)
    for place in range(3):
        lanes.push(grow(place, place), 0.0)
    lanes.cancel(StepId(0), [SEQ], 0.1)
    assert [step.is_dead for step in lanes.lane(LANES[0]).steps] == [False] * 3  # not before the quantum ends
    lanes.advance(0.25)
    assert [(one.plan.step, one.is_dead, one.end_s) for one in lanes.ended] == [(s, True, 0.25) for s in range(3)]


def test_a_cancellation_that_comes_too_late_cancels_nothing_behind_it() -> None:
    lanes = progress(quanta=2)
    lanes.push(grow(0, 0), 0.0)
    lanes.push(grow(1, 1), 0.0)
    lanes.advance(0.4)
    lanes.cancel(StepId(0), [SEQ], 0.4)  # its last quantum
    drain(lanes)
    assert [one.cancelled for one in lanes.ended] == [(), ()]


def test_what_comes_behind_an_ended_cancelled_step_is_cancelled_until_that_was_taken_away() -> None:
    lanes = progress()
    lanes.suspend(LANES[0], True, 0.0)
    lanes.push(grow(0, 0), 0.0)
    lanes.cancel(StepId(0), [SEQ], 0.0)
    lanes.push(grow(1, 1), 1.0)
    assert [one.is_dead for one in lanes.ended] == [True, True]
    lanes.ended.clear()
    lanes.push(grow(2, 0), 2.0)
    assert lanes.ended == []


def test_a_sequence_that_joins_anew_is_not_behind_its_cancelled_chunk() -> None:
    lanes = progress()
    lanes.suspend(LANES[0], True, 0.0)
    lanes.push(grow(0, 0), 0.0)
    lanes.push(grow(1, 0, roster=AGAIN), 0.0)
    lanes.push(grow(2, 1), 0.0)
    lanes.cancel(StepId(0), [SEQ], 0.0)
    assert [one.plan.step for one in lanes.ended] == [0]
    lanes.cancel(StepId(1), [SEQ], 0.0)
    assert [one.plan.step for one in lanes.ended] == [0, 1, 2]


def test_a_cancelled_chunk_takes_its_snapshots_out_of_the_price() -> None:
    kept = (Snapshot(0, GroupId(0), BlockId(1)),)
    chunks = tuple(Chunk(SeqId(seq), 0, 1, (1,), snapshots=kept) for seq in (1, 2))
    step = LaneStep(StepPlan(StepId(0), LANES[0], (), (), (), chunks))
    assert step.live_shape() == step.plan.shape()
    assert (step.live_shape().num_snapshots, step.without([SeqId(1)]).live_shape().num_snapshots) == (2, 1)


verbs = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.sampled_from(["push", "assign", "suspend", "resume", "cancel"]),
        st.sampled_from(LANES),
        st.integers(0, UNITS),
        st.lists(st.integers(1, 9), min_size=1, max_size=3),
    ),
    max_size=40,
)


def play(lanes: Progress, script: list[tuple[float, str, LaneId, int, list[int]]]) -> list[LaneStep]:
    now_s, num_steps = 0.0, 0
    for wait_s, verb, lane, number, sizes in script:
        now_s += wait_s
        lanes.advance(now_s)
        match verb:
            case "push":
                lanes.push(plan(num_steps, lane, *sizes), now_s)
                num_steps += 1
            case "assign":
                lanes.assign({LANES[0]: tuple(range(number)), LANES[1]: tuple(range(number, UNITS))}, now_s)
            case "suspend" | "resume":
                lanes.suspend(lane, verb == "suspend", now_s)
            case "cancel":
                step = max(0, num_steps - 1 - number)
                lanes.cancel(StepId(step), [SeqId(100 * step + place) for place in range(len(sizes))], now_s)
    for lane in LANES:
        lanes.suspend(lane, False, now_s)
    lanes.assign({LANES[0]: (0, 1), LANES[1]: (2, 3)}, now_s)
    drain(lanes)
    assert sorted(one.plan.step for one in lanes.ended) == list(range(num_steps))
    return lanes.ended


@given(script=verbs, quanta=st.sampled_from([1, 2, 7, 256]))
def test_every_step_ends_once_in_order_and_never_faster_than_the_whole_device(
    script: list[tuple[float, str, LaneId, int, list[int]]], quanta: int
) -> None:
    ended = play(progress(quanta), script)
    assert [one.end_s for one in ended] == sorted(one.end_s for one in ended)
    for lane in LANES:
        mine = [one for one in ended if one.plan.lane == lane]
        assert [one.plan.step for one in mine] == sorted(one.plan.step for one in mine)
        for before, after in itertools.pairwise(mine):
            assert after.start_s >= before.end_s
    for one in ended:
        live_tokens = one.live_shape().num_tokens
        assert one.end_s - one.start_s >= live_tokens / UNITS - 1e-9


@given(script=verbs)
def test_equal_verbs_give_equal_ends(script: list[tuple[float, str, LaneId, int, list[int]]]) -> None:
    assert play(progress(), script) == play(progress(), script)


def a_run(step: int, lane: LaneId, num_steps: int, *seqs: int) -> StepPlan:
    chunks = tuple(Chunk(SeqId(seq), 0, num_steps, FROM_DEVICE, None, SAMPLES_ONE) for seq in seqs)
    return StepPlan(StepId(step), lane, (), (), (), chunks, num_steps=num_steps)


def rising(shape: StepShape, share: int, beside: Sequence[StepShape]) -> float:
    """Later steps of a sequence take longer."""
    return sum(1.0 + chunk.start / 8 for chunk in shape.chunks) / share * (1.5 if beside else 1.0)


def rising_run(shape: StepShape, share: int) -> Iterator[float]:
    for place in itertools.count():
        later = StepShape(tuple(ChunkShape(one.start + place, 1, 1) for one in shape.chunks))
        yield rising(later, share, ())


def test_a_run_takes_the_time_of_its_steps_and_says_when_each_ended() -> None:
    lanes = Progress({LANES[0]: Lane((0, 1))}, rising, 8, rising_run)
    lanes.push(a_run(0, LANES[0], 4, 1), 1.0)
    lanes.push(plan(4, LANES[0], 2), 2.0)
    assert lanes.next_end_s() == 1.0 + 0.5 * (4 + 6 / 8)
    drain(lanes)
    run, behind = lanes.ended
    assert run.ends_s == pytest.approx((1.5, 2.0625, 2.6875, 3.375))
    assert (run.start_s, run.end_s, behind.start_s) == (1.0, run.ends_s[-1], run.end_s)


@given(
    st.lists(st.tuples(st.floats(0.0, 6.0), st.sampled_from(["push", "assign", "suspend", "cancel"])), max_size=4),
    st.integers(2, 9),
)
def test_a_look_ahead_through_a_run_changes_nothing_whatever_comes_between(
    verbs: list[tuple[float, str]], num_steps: int
) -> None:
    both = [
        Progress({one: Lane((0, 1) if one == LANES[0] else (2, 3)) for one in LANES}, rising, 8, f)
        for f in (rising_run, None)
    ]
    for lanes in both:
        lanes.push(a_run(0, LANES[0], num_steps, 1, 2), 0.0)
        suspended = False
        for number, (at_s, verb) in enumerate(sorted(verbs)):
            lanes.advance(at_s)
            match verb:
                case "push":
                    lanes.push(plan(100 + number, LANES[1], 3), at_s)
                case "assign":
                    lanes.assign({LANES[0]: (0,) if number % 2 else (0, 1, 2), LANES[1]: (3,)}, at_s)
                case "suspend":
                    suspended = not suspended
                    lanes.suspend(LANES[0], suspended, at_s)
                case _:
                    lanes.cancel(StepId(0), [SeqId(1 + number % 2)], at_s)
        lanes.advance(7.0)
        lanes.suspend(LANES[0], False, 7.0)
        drain(lanes)
    ahead, single = ([(one.plan.step, one.ends_s, one.end_s, one.cancelled) for one in lanes.ended] for lanes in both)
    assert [(step, cancelled) for step, _, _, cancelled in ahead] == [
        (step, cancelled) for step, _, _, cancelled in single
    ]
    for (_, mine, my_end, _), (_, theirs, their_end, _) in zip(ahead, single, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
        assert my_end == pytest.approx(their_end, rel=1e-9)
