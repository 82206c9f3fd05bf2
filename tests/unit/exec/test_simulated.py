"""The simulated executor against times worked out by hand: lanes, shares, suspension, cancellation, and bad plans."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from plait.core.clock import SimClock
from plait.core.errors import InvariantError
from plait.core.executor import Executor, ExecutorInfo, StepForm
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    FROM_DEVICE,
    BlockGrant,
    Chunk,
    Drafts,
    Join,
    Leave,
    OutputKind,
    Outputs,
    SeqStatus,
    StepPlan,
    StepResult,
    StepShape,
    StepStatus,
    TokenLogprob,
)
from plait.cost.model import Bound, StepPrice
from plait.cost.scatter import Replay, Scatter
from plait.exec.roster import GroupSlots
from plait.exec.simulated import SimulatedExecutor

D, P = LaneId(0), LaneId(1)
INFO = ExecutorInfo(
    name="simulated",
    lanes=(D, P),
    share_units=4,
    forms=(StepForm.FUSED, StepForm.LANES),
    queue_depth=2,
    max_step_tokens=100,
    max_rows=8,
    memory_bytes=0,
    formats=(),
    fingerprint="simulated",
    bit_exact=False,
)


class OneSecondPerToken:
    """A token takes one second on one unit, and a quarter longer beside another step."""

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = shape.num_tokens / share * (1.25 if beside else 1.0)
        return StepPrice(seconds, seconds, Bound.COMPUTE)


def token_at(seq: SeqId, position: int) -> int:
    return 1000 * seq + position


class Rig:
    """An executor, its clock, and sequences that grow as long as they are asked to. A sequence's blocks are its own."""

    def __init__(self, quanta_per_step: int = 4, replay: Replay | None = None) -> None:
        self.clock = SimClock()
        groups = [GroupSlots(num_blocks=8, tokens_per_block=100)]
        self.executor = SimulatedExecutor(
            INFO, groups, self.clock, OneSecondPerToken(), token_at, quanta_per_step, replay=replay
        )
        self._next_step = 0
        self._ends: dict[SeqId, int] = {}

    def plan(self, lane: LaneId, **num_tokens: int) -> StepPlan:
        """`plan(D, s1=4)`: the next 4 tokens of sequence 1; it joins when it is first seen."""
        roster, blocks, chunks = [], [], []
        for name, count in num_tokens.items():
            seq = SeqId(int(name[1:]))
            if seq not in self._ends:
                roster.append(Join(seq, int(seq), SamplingParams(), seed=0, choice=0, num_prompt=1000))
                blocks.append(BlockGrant(seq, GroupId(0), 0, (BlockId(int(seq)),)))
            start = self._ends.get(seq, 0)
            self._ends[seq] = start + count
            chunks.append(Chunk(seq, start, count, (7,) * count, outputs=(Outputs(count - 1, 1, OutputKind.SAMPLE),)))
        step, self._next_step = StepId(self._next_step), self._next_step + 1
        return StepPlan(step, lane, tuple(roster), tuple(blocks), (), tuple(chunks))

    def submit(self, lane: LaneId, **num_tokens: int) -> StepId:
        made = self.plan(lane, **num_tokens)
        self.executor.submit(made)
        return made.step

    def wait(self, until: float | None = None) -> list[StepResult]:
        self.clock.wait(self.executor, until=until)
        return self.executor.collect()

    def run_to(self, at_s: float) -> None:
        """Let time pass without collecting."""
        while self.clock.now() < at_s:
            self.clock.wait(until=at_s)

    def ends(self) -> dict[StepId, tuple[float, float]]:
        """Start and end of every step still to come."""
        found: dict[StepId, tuple[float, float]] = {}
        while self.executor.next_s() is not None:
            found |= {one.step: (one.start_s, one.end_s) for one in self.wait()}
        return found


def test_it_is_an_executor() -> None:
    executor: Executor = Rig().executor
    assert executor.info is INFO


def test_a_step_takes_its_price_and_then_gives_a_token_per_sampled_row() -> None:
    rig = Rig()
    step = rig.submit(D, s1=8)
    assert rig.executor.collect() == []
    assert rig.executor.next_s() == 2.0
    (done,) = rig.wait()
    assert rig.clock.now() == 2.0
    assert (done.step, done.start_s, done.end_s, done.workers) == (step, 0.0, 2.0, 4)
    assert done.status is StepStatus.COMPLETED
    assert done.seqs[0].tokens == (token_at(SeqId(1), 8),)
    assert done.seqs[0].num_computed == 8
    assert rig.executor.next_s() is None


def test_steps_of_a_lane_run_one_after_another() -> None:
    rig = Rig()
    first, second = rig.submit(D, s1=8), rig.submit(D, s2=4)
    assert rig.ends() == {first: (0.0, 2.0), second: (2.0, 3.0)}


def test_lanes_run_side_by_side_and_slow_each_other_only_while_both_run() -> None:
    rig = Rig()
    rig.executor.assign({D: (0, 1), P: (2, 3)})
    short, long = rig.submit(D, s1=4), rig.submit(P, s2=8)
    # Side by side 4 tokens take 2.5 s; by then 8 tokens, which would take 5 s, are half done: 2 s alone are left.
    assert rig.ends() == {short: (0.0, 2.5), long: (0.0, 4.5)}


def test_a_lane_without_units_rests_until_it_gets_some() -> None:
    rig = Rig()
    step = rig.submit(P, s1=4)
    assert rig.executor.next_s() is None
    rig.run_to(3.0)
    rig.executor.assign({D: (), P: (0,)})
    assert rig.ends() == {step: (3.0, 7.0)}


def test_new_shares_count_from_the_next_quantum_on() -> None:
    rig = Rig()
    step = rig.submit(D, s1=8)
    rig.run_to(0.6)  # quanta of 0.5 s: the second one ends at 1.0, half of the step
    rig.executor.assign({D: (0,), P: (1, 2, 3)})
    assert rig.ends() == {step: (0.0, 1.0 + 4.0)}


def test_new_shares_at_the_end_of_a_quantum_count_at_once() -> None:
    rig = Rig()
    step = rig.submit(D, s1=8)
    rig.run_to(0.5)
    rig.executor.assign({D: (0,), P: ()})
    assert rig.ends() == {step: (0.0, 0.5 + 6.0)}


def test_new_shares_in_the_last_quantum_are_for_the_next_step() -> None:
    rig = Rig()
    first, second = rig.submit(D, s1=8), rig.submit(D, s2=8)
    rig.run_to(1.9)
    rig.executor.assign({D: (0, 1), P: ()})
    assert rig.ends() == {first: (0.0, 2.0), second: (2.0, 6.0)}


def test_a_step_reports_the_most_workers_it_had() -> None:
    rig = Rig()
    rig.submit(D, s1=8)
    rig.executor.assign({D: (0,), P: ()})
    rig.executor.assign({D: (0, 1, 2), P: ()})
    assert rig.wait()[0].workers == 4


def test_a_suspended_step_stops_at_the_quantum_and_goes_on_where_it_was() -> None:
    rig = Rig()
    first, second = rig.submit(D, s1=8), rig.submit(D, s2=4)
    rig.run_to(0.6)
    rig.executor.suspend(D)
    assert rig.executor.next_s() is None
    rig.run_to(10.0)
    rig.executor.resume(D)
    assert rig.ends() == {first: (0.0, 11.0), second: (11.0, 12.0)}


def test_resuming_before_the_quantum_ends_loses_nothing() -> None:
    rig = Rig()
    step = rig.submit(D, s1=8)
    rig.run_to(0.6)
    rig.executor.suspend(D)
    rig.executor.resume(D)
    assert rig.ends() == {step: (0.0, 2.0)}


def test_suspending_in_the_last_quantum_lets_the_step_end_and_holds_the_next() -> None:
    rig = Rig()
    first, second = rig.submit(D, s1=8), rig.submit(D, s2=4)
    rig.run_to(1.9)
    rig.executor.suspend(D)
    assert [one.step for one in rig.wait()] == [first]
    assert rig.executor.next_s() is None
    rig.run_to(5.0)
    rig.executor.resume(D)
    assert rig.ends() == {second: (5.0, 6.0)}


def test_suspending_one_lane_speeds_up_the_other() -> None:
    rig = Rig()
    rig.executor.assign({D: (0, 1), P: (2, 3)})
    short, long = rig.submit(D, s1=4), rig.submit(P, s2=8)
    rig.executor.suspend(P)
    assert rig.wait()[0].end_s == 2.0
    rig.executor.resume(P)
    assert rig.ends() == {long: (0.0, 6.0)}
    assert short < long


def test_a_fully_cancelled_step_ends_at_the_quantum() -> None:
    rig = Rig()
    step = rig.submit(D, s1=4, s2=4)
    rig.run_to(0.6)
    rig.executor.cancel(step, [SeqId(1), SeqId(2), SeqId(99)])
    (done,) = rig.wait()
    assert (done.end_s, done.status) == (1.0, StepStatus.CANCELLED)
    assert [one.status for one in done.seqs] == [SeqStatus.CANCELLED] * 2
    assert all(one.tokens == () and one.num_computed == 0 for one in done.seqs)


def test_a_cancelled_chunk_makes_the_rest_of_the_step_cheaper() -> None:
    rig = Rig()
    step = rig.submit(D, s1=4, s2=4)
    rig.run_to(0.6)
    rig.executor.cancel(step, [SeqId(2)])
    (done,) = rig.wait()
    assert (done.end_s, done.status) == (1.5, StepStatus.COMPLETED)  # the second half at the price of 4 tokens
    assert [one.status for one in done.seqs] == [SeqStatus.OK, SeqStatus.CANCELLED]


def test_a_queued_step_that_is_cancelled_takes_no_time() -> None:
    rig = Rig()
    first, second, third = rig.submit(D, s1=8), rig.submit(D, s2=4), None
    rig.executor.cancel(second, [SeqId(2)])
    assert [one.step for one in rig.wait()] == [first, second]
    third = rig.submit(D, s3=4)
    assert rig.ends() == {third: (2.0, 3.0)}


def test_a_parked_step_can_be_cancelled_away() -> None:
    rig = Rig()
    step = rig.submit(D, s1=8)
    rig.run_to(0.5)
    rig.executor.suspend(D)
    rig.run_to(7.0)
    rig.executor.cancel(step, [SeqId(1)])
    assert rig.wait()[0].end_s == 7.0


def test_cancelling_unknown_or_ended_steps_does_nothing() -> None:
    rig = Rig()
    step = rig.submit(D, s1=8)
    rig.executor.cancel(StepId(77), [SeqId(1)])
    (done,) = rig.wait()
    rig.executor.cancel(step, [SeqId(1)])
    assert done.status is StepStatus.COMPLETED
    assert rig.executor.collect() == []


def test_equal_calls_give_equal_results() -> None:
    def history() -> list[StepResult]:
        rig = Rig(quanta_per_step=37)
        rig.executor.assign({D: (0,), P: (1, 2, 3)})
        first = rig.submit(D, s1=5)
        rig.submit(P, s2=50, s3=9)
        rig.run_to(1.0 / 3.0)
        rig.executor.assign({D: (0, 3), P: (1, 2)})
        rig.run_to(1.1)
        rig.executor.cancel(first, [SeqId(1)])
        rig.executor.suspend(P)
        results = rig.wait()
        rig.executor.resume(P)
        return results + rig.wait()

    assert history() == history()
    assert len(history()) == 2


def test_waiting_never_ends_before_a_step_has() -> None:
    rig = Rig()
    rig.submit(D, s1=8)
    rig.run_to(0.6)
    rig.executor.assign({D: (0,), P: (1,)})
    assert rig.executor.next_s() == 5.0  # not 1.0, when the new share takes effect
    assert len(rig.wait()) == 1


def test_a_closed_executor_has_nothing_to_say() -> None:
    rig = Rig()
    rig.submit(D, s1=8)
    rig.executor.close()
    assert rig.executor.next_s() is None
    assert rig.executor.collect() == []


# What is "sampled":


def submit_chunk(rig: Rig, step: int, chunk: Chunk, params: SamplingParams | None = None, num_prompt: int = 3) -> None:
    roster: tuple[Join | Leave, ...] = ()
    blocks: tuple[BlockGrant, ...] = ()
    if params is not None:
        roster = (Join(chunk.seq, 0, params, seed=0, choice=0, num_prompt=num_prompt),)
        blocks = (BlockGrant(chunk.seq, GroupId(0), 0, (BlockId(0),)),)
    rig.executor.submit(StepPlan(StepId(step), D, roster, blocks, (), (chunk,)))


def sample(first: int, num_rows: int = 1) -> tuple[Outputs, ...]:
    return (Outputs(first, num_rows, OutputKind.SAMPLE),)


SEQ = SeqId(2)


def test_a_step_may_be_queued_with_the_token_that_is_being_sampled() -> None:
    rig = Rig()
    submit_chunk(rig, 0, Chunk(SEQ, 0, 3, (1, 1, 1), outputs=sample(2)), SamplingParams())
    submit_chunk(rig, 1, Chunk(SEQ, 3, 1, FROM_DEVICE, outputs=sample(0)))
    tokens = [one.seqs[0].tokens for _ in range(2) for one in rig.wait()]
    assert tokens == [(token_at(SEQ, 3),), (token_at(SEQ, 4),)]


def test_logprobs_are_those_of_a_certain_token() -> None:
    rig = Rig()
    submit_chunk(rig, 0, Chunk(SEQ, 0, 3, (1, 1, 1), outputs=sample(2)), SamplingParams(logprobs=1))
    token = token_at(SEQ, 3)
    assert rig.wait()[0].seqs[0].logprobs == (TokenLogprob(token, 0.0, ((token, 0.0),)),)


def test_scored_rows_give_their_targets() -> None:
    rig = Rig()
    scored = Outputs(0, 2, OutputKind.LOGPROBS, targets=(5, 6))
    submit_chunk(rig, 0, Chunk(SEQ, 0, 3, (1, 5, 6), outputs=(scored, *sample(2))), SamplingParams())
    given = rig.wait()[0].seqs[0]
    assert given.prompt_logprobs == (TokenLogprob(5, 0.0), TokenLogprob(6, 0.0))
    assert given.tokens == (token_at(SEQ, 3),)


def test_pooled_rows_give_an_empty_vector_and_others_none() -> None:
    rig = Rig()
    submit_chunk(rig, 0, Chunk(SEQ, 0, 2, (1, 1), outputs=(Outputs(0, 2, OutputKind.POOL),)), SamplingParams())
    submit_chunk(rig, 1, Chunk(SEQ, 2, 1, (1,)))
    assert [one.seqs[0].pooled for _ in range(2) for one in rig.wait()] == [(), None]


def verify(guesses: tuple[int, ...], parents: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    rig = Rig()
    submit_chunk(rig, 0, Chunk(SEQ, 0, 3, (1, 1, 1), outputs=sample(2)), SamplingParams())
    rig.wait()
    known = token_at(SEQ, 3)
    size = 1 + len(guesses)
    submit_chunk(rig, 1, Chunk(SEQ, 3, size, (known,), Drafts(guesses, parents), outputs=sample(0, size)))
    given = rig.wait()[0].seqs[0]
    return given.num_computed, given.num_accepted, given.tokens


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_drafts_are_accepted_as_far_as_they_are_right(right: int) -> None:
    truth = [token_at(SEQ, position) for position in range(4, 8)]
    guesses = tuple(truth[place] if place < right else 9 for place in range(3))
    assert verify(guesses, (-1, 0, 1)) == (1 + right, right, tuple(truth[: right + 1]))


def test_a_draft_tree_is_followed_along_the_right_branch() -> None:
    first, second, third = (token_at(SEQ, position) for position in (4, 5, 6))
    # Two branches from the known token; only the second one is right, and only its second child.
    guesses, parents = (9, first, 9, second), (-1, -1, 1, 1)
    assert verify(guesses, parents) == (3, 2, (first, second, third))


# What is refused:


def test_a_full_queue_is_the_schedulers_bug_until_results_are_collected() -> None:
    rig = Rig()
    rig.submit(D, s1=4)
    rig.submit(D, s2=4)
    rig.run_to(5.0)
    third = rig.plan(D, s3=4)
    with pytest.raises(InvariantError, match="lane 0 has 2 steps submitted and not collected"):
        rig.executor.submit(third)
    rig.executor.collect()
    rig.executor.submit(third)
    assert rig.ends() == {third.step: (5.0, 6.0)}


def test_steps_come_in_ascending_order_over_all_lanes() -> None:
    rig = Rig()
    late, early = rig.plan(D, s1=1), rig.plan(P, s2=1)
    rig.executor.submit(early)
    with pytest.raises(InvariantError, match="step 0 is submitted after step 1"):
        rig.executor.submit(late)


def test_a_plan_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InvariantError, match="2 known and 0 draft tokens but num_tokens 3"):
        submit_chunk(Rig(), 0, Chunk(SEQ, 0, 3, (1, 1)), SamplingParams())


def test_a_step_larger_than_the_executor_takes_is_refused() -> None:
    rig = Rig()
    with pytest.raises(InvariantError, match="step 0 has 101 tokens; the executor takes 100"):
        rig.executor.submit(rig.plan(D, s1=51, s2=50))


def test_what_the_roster_finds_is_refused() -> None:
    with pytest.raises(InvariantError, match="sequence 2 has not joined"):
        submit_chunk(Rig(), 0, Chunk(SEQ, 0, 1, (1,)))


def test_feeding_back_another_token_than_was_sampled_is_refused() -> None:
    rig = Rig()
    submit_chunk(rig, 0, Chunk(SEQ, 0, 3, (1, 1, 1), outputs=sample(2)), SamplingParams())
    rig.wait()
    with pytest.raises(InvariantError, match="is fed token 8 at position 3, but 2003 was sampled"):
        submit_chunk(rig, 1, Chunk(SEQ, 3, 1, (8,)))


def test_drafts_that_nothing_verifies_are_refused() -> None:
    rig = Rig()
    submit_chunk(rig, 0, Chunk(SEQ, 0, 3, (1, 1), Drafts((9,), (-1,))), SamplingParams())
    with pytest.raises(InvariantError, match="no sampled rows that could verify"):
        rig.wait()


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({D: (0, 1), P: (1, 2)}, "not disjoint"),
        ({D: (0, 4), P: ()}, "units 0 to 3"),
        ({D: (0,)}, "must name all"),
        ({D: (0,), P: (), LaneId(7): ()}, "must name all"),
    ],
)
def test_shares_are_disjoint_and_given_to_all_lanes_at_once(
    shares: dict[LaneId, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(InvariantError, match=message):
        Rig().executor.assign(shares)


def test_a_lane_is_suspended_once() -> None:
    executor = Rig().executor
    executor.suspend(D)
    with pytest.raises(InvariantError, match="lane 0 is suspended already"):
        executor.suspend(D)
    executor.resume(D)
    with pytest.raises(InvariantError, match="lane 0 is resumed but was not suspended"):
        executor.resume(D)


def test_a_lane_that_does_not_exist_is_refused() -> None:
    rig = Rig()
    with pytest.raises(InvariantError, match="lane 5 does not exist"):
        rig.submit(LaneId(5), s1=1)
    with pytest.raises(InvariantError, match="lane 5 does not exist"):
        rig.executor.suspend(LaneId(5))


def test_on_a_measured_machine_steps_depart_from_prices_and_ends_are_seen_late() -> None:
    """Twice the price, half a second late, and a second more after a rest."""
    scatter = Scatter((1.0,), (2.0,), (0.0,), (0.5,), 1.0)
    rig = Rig(replay=Replay(scatter))
    rig.submit(D, s1=4)  # 1 s by its price; nothing ran before
    rig.submit(D, s2=4)
    assert rig.executor.next_s() == pytest.approx(3.5)
    first = rig.wait()
    assert rig.clock.now() == pytest.approx(3.5)
    assert [(one.start_s, one.end_s) for one in first] == [pytest.approx((0.0, 3.0))]
    # Its successor went on meanwhile.
    assert [(one.start_s, one.end_s) for one in rig.wait()] == [pytest.approx((3.0, 5.0))]
    assert rig.clock.now() == pytest.approx(5.5)
    rig.submit(D, s1=4)  # after half a second
    assert [(one.start_s, one.end_s) for one in rig.wait()] == [pytest.approx((5.5, 8.5))]


def test_an_engine_that_comes_later_than_the_next_end_finds_both() -> None:
    rig = Rig(replay=Replay(Scatter((1.0,), (1.0,), (0.0,), (1.5,), 0.0)))
    rig.submit(D, s1=4)
    rig.submit(D, s2=4)
    assert [one.end_s for one in rig.wait()] == pytest.approx([1.0, 2.0])
    assert rig.clock.now() == pytest.approx(2.5)


def test_what_was_measured_on_long_steps_leaves_half_of_a_short_one() -> None:
    rig = Rig(replay=Replay(Scatter((1.0,), (1.5,), (-1.0,), (0.0,), 0.0)))
    rig.submit(D, s1=12)
    rig.submit(D, s2=1)
    first, second = rig.ends().values()
    assert first == pytest.approx((0.0, 1.5 * 3.0 - 1.0))
    assert second[1] - second[0] == pytest.approx(1.5 * 0.25 / 2)


def test_a_step_whose_price_falls_while_it_runs_still_takes_time() -> None:
    rig = Rig(replay=Replay(Scatter((1.0,), (1.0,), (-0.9,), (0.0,), 0.0)))
    rig.executor.assign({D: (0,), P: (1, 2, 3)})
    rig.submit(P, s2=8)
    rig.submit(D, s1=1)
    rig.run_to(0.05)
    rig.executor.assign({D: (0, 1, 2, 3), P: ()})
    rig.run_to(2.0)
    assert rig.clock.now() == 2.0
    (ended,) = rig.executor.collect()
    assert ended.end_s > ended.start_s == 0.0
