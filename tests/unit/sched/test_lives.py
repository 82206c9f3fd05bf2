"""Lives under a policy that dares more than the chunked one: several lanes, and several steps in flight."""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import make_kv

from plait.core.decision import Cancel
from plait.core.errors import InvariantError
from plait.core.events import Event, Preempted
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.request import FinishReason, Request, SeqState, Sequence
from plait.core.sampling import SamplingParams
from plait.core.step import Chunk, Join, Leave, OutputKind, SeqResult, SeqStatus, StepPlan, StepResult, StepStatus
from plait.kv.cache import Grants
from plait.sched.lives import Lives, LivesConfig
from plait.sched.open_step import OpenStep

ONE, TWO = LaneId(0), LaneId(1)


def _num_samples(chunk: Chunk) -> int:
    return sum(output.num_rows for output in chunk.outputs if output.kind is OutputKind.SAMPLE)


def scored(plan: StepPlan) -> list[int]:
    """Prompt tokens whose log-probabilities a step of one chunk gives."""
    (chunk,) = plan.chunks
    return [token for output in chunk.outputs if output.kind is OutputKind.LOGPROBS for token in output.targets]


class Play:
    """A policy by hand, and the device."""

    def __init__(self, *, num_blocks: int = 32, max_rows: int = 4) -> None:
        self.kv = make_kv(num_blocks)
        self.events: list[Event] = []
        self.lives = Lives(LivesConfig(max_rows=max_rows, max_model_tokens=64), self.kv, self.events.append)
        self._num_admitted = 0

    def admit(self, prompt: range, max_tokens: int = 4, prompt_logprobs: int | None = None) -> Sequence:
        sampling = SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs)
        request = Request(RequestId("r"), tuple(prompt), sampling)
        seq = Sequence(SeqId(self._num_admitted), request, 0, 7, max_tokens, 0.0, list(prompt))
        self._num_admitted += 1
        self.lives.admit(seq)
        return seq

    def step(self, *seqs: Sequence, lane: LaneId = ONE, budget: int = 8) -> StepPlan:
        """A step in flight in which those who wait join and those who run go on."""
        step = OpenStep(lane, budget)
        for seq in seqs:
            if seq.state is SeqState.RUNNING:
                assert self.lives.go_on(step, seq, seq.num_plannable, 0.0)
            else:
                self.lives.join(step, seq, self.lives.lookup(seq), 0.0)
        plan = self.lives.submit(step).plan
        self.check()
        return plan

    def end(self, plan: StepPlan, status: SeqStatus = SeqStatus.OK) -> list[FinishReason | None]:
        """The step is collected; the reasons of its updates."""
        computed = status is SeqStatus.OK
        results = tuple(
            SeqResult(c.seq, status, c.num_tokens * computed, (1000 + c.end,) * (_num_samples(c) * computed))
            for c in plan.chunks
        )
        result = StepResult(plan.step, plan.lane, StepStatus.COMPLETED, 0.0, 0.0, 1, results)
        updates = self.lives.commit(result, 0.0)
        self.check()
        return [update.finish_reason for update in updates]

    def check(self) -> None:
        self.lives.check()
        self.kv.check()


def test_two_chunks_of_a_prompt_may_be_in_flight() -> None:
    play = Play()
    seq = play.admit(range(20))
    plans = [play.step(seq), play.step(seq), play.step(seq)]
    assert [(plan.chunks[0].start, plan.chunks[0].num_tokens) for plan in plans] == [(0, 8), (8, 8), (16, 4)]
    assert play.lives.num_in_flight == 3
    assert (seq.num_scheduled, seq.num_uncomputed) == (20, 0)
    for plan in plans:
        play.end(plan)
    assert (seq.num_computed, seq.num_scheduled, seq.num_output) == (20, 0, 1)


def test_abort_cancels_every_step_that_names_the_sequence_and_no_other() -> None:
    play = Play()
    seq, other = play.admit(range(20)), play.admit(range(100, 103))
    first, alone, second = play.step(seq), play.step(other), play.step(seq)
    play.lives.abort(seq.id, 0.0)
    assert play.lives.take_cancels() == [Cancel(first.step, (seq.id,)), Cancel(second.step, (seq.id,))]
    assert play.lives.take_cancels() == []
    for plan in (first, second):
        assert play.end(plan, SeqStatus.CANCELLED) == []
    play.end(alone)
    assert play.kv.usage().groups[0].quarantined == 0
    assert play.step(other).roster == (Leave(seq.id),)


def test_who_ends_or_fails_in_one_step_is_cancelled_in_the_next() -> None:
    play = Play()
    ends, fails = play.admit(range(8), max_tokens=1), play.admit(range(50, 66))
    last = play.step(ends)
    first, second = play.step(fails), play.step(fails)
    assert play.end(last) == [FinishReason.LENGTH]
    assert play.lives.take_cancels() == []
    assert play.end(first, SeqStatus.FAILED) == [FinishReason.ERROR]
    assert play.lives.take_cancels() == [Cancel(second.step, (fails.id,))]
    assert play.end(second) == [], "what a step says of one who has ended is not heard"


def test_who_is_in_flight_is_not_preempted() -> None:
    play = Play()
    seq = play.admit(range(3))
    plan = play.step(seq)
    with pytest.raises(InvariantError, match="sequence 0 is preempted while a step names it"):
        play.lives.preempt(seq, 0.0)
    play.end(plan)
    play.lives.preempt(seq, 0.0)
    assert (seq.state, seq.row, seq.lane, seq.num_computed) == (SeqState.PREEMPTED, None, None, 0)
    assert list(play.lives.waiting) == [seq]
    assert [event.num_computed_lost for event in play.events if isinstance(event, Preempted)] == [3]
    assert seq.tokens == [0, 1, 2, 1003], "what it said stays"
    assert play.step(seq).chunks[0].tokens == (0, 1, 2, 1003)


def test_a_row_left_on_one_lane_goes_to_another_when_the_leave_is_known() -> None:
    play = Play(max_rows=1)
    first, second = play.admit(range(3), max_tokens=1), play.admit(range(9))
    play.end(play.step(first))
    assert (play.lives.num_free_rows(ONE), play.lives.num_free_rows(TWO)) == (1, 0)
    told = play.step()
    assert told.roster == (Leave(first.id),)
    play.end(told)
    assert play.lives.num_free_rows(TWO) == 1
    plan = play.step(second, lane=TWO)
    (join,) = plan.roster
    assert isinstance(join, Join)
    assert (plan.lane, join.row, second.lane) == (TWO, 0, TWO)


def test_shortage_is_a_value_and_changes_nothing() -> None:
    play = Play(num_blocks=2)
    seq, other = play.admit(range(4)), play.admit(range(20, 24))
    play.end(play.step(seq, other))
    step = OpenStep(ONE, 8)
    assert not play.lives.go_on(step, seq, seq.num_plannable, 0.0)
    assert (step.chunks, step.budget, seq.num_scheduled) == ({}, 8, 0)
    assert play.lives.fitting(play.admit(range(50, 54)), play.kv.no_hit()) is None
    play.check()


def test_room_that_is_not_there_although_nobody_uses_any_is_our_bug() -> None:
    play = Play(num_blocks=2)
    seq = play.admit(range(4))
    seq.tokens += range(9)
    with pytest.raises(InvariantError, match="sequence 0 does not fit into empty memory: 2 of 2 pages free"):
        play.lives.fitting(seq, play.kv.no_hit())


def test_steps_are_numbered_over_all_lanes_and_each_is_committed_once() -> None:
    play = Play()
    one, two = play.admit(range(3)), play.admit(range(50, 53))
    plans = [play.step(one, lane=ONE), play.step(two, lane=TWO)]
    assert [plan.step for plan in plans] == [StepId(0), StepId(1)]
    for plan in reversed(plans):
        play.end(plan)
    with pytest.raises(InvariantError, match="step 1 was collected but is not in flight"):
        play.end(plans[1])


@pytest.mark.parametrize("budget", [1, 3, 5, 12])
def test_what_was_scored_before_a_preemption_is_not_scored_again(budget: int) -> None:
    """Whatever the steps are cut to while what was lost is computed once more."""
    play = Play()
    seq = play.admit(range(12), prompt_logprobs=0)
    plan = play.step(seq, budget=7)
    told = scored(plan)
    play.end(plan)
    play.lives.preempt(seq, 0.0)
    while not seq.num_output:
        plan = play.step(seq, budget=budget)
        told += scored(plan)
        play.end(plan)
    assert told == list(range(1, 12))


def test_a_sequence_that_goes_on_asks_the_memory_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    seq = play.admit(range(6), max_tokens=20)
    play.end(play.step(seq))
    asked: list[int] = []
    reserve = play.kv.reserve

    def counted(seq_id: SeqId, num_tokens: int, now_s: float, up_to: int | None = None) -> Grants | None:
        asked.append(num_tokens)
        return reserve(seq_id, num_tokens, now_s, up_to)

    monkeypatch.setattr(play.kv, "reserve", counted)
    for _ in range(12):
        play.end(play.step(seq))
    assert asked == [9, 13, 17]
    assert seq.num_slots == play.kv.num_slots(seq.id) == 20
    play.lives.preempt(seq, 0.0)
    assert seq.num_slots == 0
    play.check()
