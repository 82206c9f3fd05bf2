"""The loop: what comes in is answered or refused, once; text ends where it should; and nobody is hurt by another."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.engine.kit import EOS, VOCAB, Stage, ask, failing, in_bursts, letter_at, says

from plait.core.client import Delta
from plait.core.decision import Cancel
from plait.core.errors import InvariantError, RequestError
from plait.core.events import Applied, Arrived, Emitted, Finished, Refused, Scheduled, Started, Submitted
from plait.core.ids import RequestId, SeqId, StepId
from plait.core.request import FinishReason, Request, Sequence
from plait.core.sampling import SamplingParams
from plait.core.step import Join
from plait.engine.inbox import Arrive, Close
from plait.text.stream import TextStream

STOPPING = SamplingParams(stop=("gh",))


def joins(stage: Stage) -> list[Join]:
    return [change for event in stage.of(Submitted) for change in event.plan.roster if isinstance(change, Join)]


# From arrival to answer


def test_a_request_is_answered_token_by_token() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=3))
    stage.run()
    assert [delta.text for delta in stage.answers.deltas("r")] == ["d", "e", "f"]
    assert [delta.tokens for delta in stage.answers.deltas("r")] == [(ord("d"),), (ord("e"),), (ord("f"),)]
    assert [delta.finish_reason for delta in stage.answers.deltas("r")] == [None, None, FinishReason.LENGTH]
    assert stage.answers.last("r").num_prompt == 3


def test_times_are_those_of_the_clock() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=3), at_s=10.0)
    stage.run()
    (finished,) = stage.of(Finished)
    assert (finished.arrival_s, finished.scheduled_s, finished.first_token_s, finished.at_s) == (10, 10, 13, 15)


def test_answers_are_delivered_once_per_tick_however_many_there_are() -> None:
    stage = Stage()
    stage.arrive(ask("r", "ab", max_tokens=2), ask("s", "xy", max_tokens=2))
    stage.run()
    assert stage.answers.batches == [(4.0, 2), (6.0, 2)]
    before = stage.answers.num_flushes
    stage.tick()
    assert stage.answers.num_flushes == before + 1


def test_an_answer_without_text_carries_tokens_only() -> None:
    stage = Stage(has_text=False)
    stage.arrive(ask("r", "abc", max_tokens=2, sampling=STOPPING))
    stage.run()
    assert stage.answers.text("r") == ""
    assert stage.answers.tokens("r") == [ord("d"), ord("e")]


def test_cached_prompt_tokens_are_reported() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abcdefgh"))
    stage.arrive(ask("s", "abcdefgh"), at_s=50.0)
    stage.run()
    assert stage.answers.last("r").num_cached == 0
    assert stage.answers.last("s").num_cached == 7
    assert stage.answers.text("r") == stage.answers.text("s") == "ijkl"


def test_logprobs_come_with_their_tokens() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=2, sampling=SamplingParams(logprobs=0)))
    stage.run()
    assert [[one.token for one in delta.logprobs] for delta in stage.answers.deltas("r")] == [[ord("d")], [ord("e")]]


def test_a_request_without_a_limit_may_fill_the_model() -> None:
    stage = Stage(max_model_tokens=20)
    stage.arrive(ask("r", "abc", max_tokens=None))
    stage.run()
    assert stage.answers.text("r") == "defghijklmnopqrst"
    assert stage.answers.last("r").finish_reason is FinishReason.LENGTH


def test_a_device_has_its_step_before_the_next_one_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, happened = Stage(), list[str]()
    plan, submit = stage.scheduler.plan, stage.device.submit
    monkeypatch.setattr(stage.scheduler, "plan", lambda now: (happened.append("plan"), plan(now))[1])
    monkeypatch.setattr(stage.device, "submit", lambda step: (happened.append("submit"), submit(step))[1])
    stage.arrive(ask("r"))
    stage.tick()
    assert happened == ["plan", "submit", "plan", "submit", "plan"]


def test_what_was_computed_behind_an_end_is_in_no_answer_and_no_count() -> None:
    stage = Stage(token_at=says("abcdef"))
    stage.arrive(ask("r", "abc", max_tokens=30, sampling=SamplingParams(logprobs=0)), ask("s", "ab", max_tokens=4))
    stage.run()
    assert stage.answers.tokens("r") == [*b"def", EOS]
    assert [one.token for delta in stage.answers.deltas("r") for one in delta.logprobs] == [*b"def", EOS]
    assert [event.num_output for event in stage.of(Finished)] == [4, 4]
    assert sum(event.num_tokens for event in stage.of(Emitted)) == 8
    cancelled = [event.decision for event in stage.of(Applied)]
    assert cancelled == [Cancel(StepId(4), (SeqId(0),))], "s was certain to end"
    stage.assert_memory_is_empty()


# Refusals


@pytest.mark.parametrize(
    ("request_", "message", "param"),
    [
        (ask("bad", sampling=SamplingParams(top_p=2.0)), "top_p is 2.0", "top_p"),
        (
            ask("bad", [1, VOCAB]),
            f"prompt holds token {VOCAB}; this model's ids go from 0 to {VOCAB - 1}",
            "prompt",
        ),
        (ask("bad", [-1]), "prompt holds token -1", "prompt"),
        (ask("bad", ""), "the prompt is empty", "prompt"),
        (ask("bad", "x" * 100), "the prompt has 100 tokens but this model holds 100", "prompt"),
        (ask("bad", "x" * 97, max_tokens=4), "has 97 tokens and max_tokens is 4, together 101", "max_tokens"),
        (ask("bad", n=0), "n is 0", "n"),
        (ask("bad", n=-1), "n is -1", "n"),
        (ask("bad", n=10**9), "n is 1000000000", "n"),
        (ask("bad", max_tokens=0), "max_tokens is 0; it must be at least 1", "max_tokens"),
        (ask("bad", deadline_s=math.nan), "the deadline is not a number", "deadline_s"),
        (replace(ask("bad"), adapter="style"), "adapter 'style' is not loaded", "adapter"),
    ],
)
def test_what_cannot_be_served_is_refused_and_hurts_nobody(request_: Request, message: str, param: str) -> None:
    stage = Stage()
    stage.arrive(ask("good"), request_, ask("other"))
    stage.run()
    refusal = stage.answers.refusal("bad")
    assert message in refusal.message
    assert refusal.param == param
    assert [event.request for event in stage.of(Refused)] == ["bad"]
    assert stage.answers.text("good") == stage.answers.text("other") == "defg"
    stage.assert_memory_is_empty()


def test_what_no_memory_could_hold_is_refused_with_both_numbers() -> None:
    stage = Stage(num_blocks=4)
    stage.arrive(ask("r", "x" * 10, max_tokens=7))
    stage.run()
    assert "memory for 17 tokens but the cache holds 16" in stage.answers.refusal("r").message


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    stage = Stage()
    stage.arrive(ask("r", max_tokens=8))
    stage.arrive(ask("r", "xyz"), at_s=5.0)
    stage.arrive(ask("r", "abcde", max_tokens=1), at_s=50.0)
    stage.run()
    answers = stage.answers.by_request["r"]
    (refusal,) = [answer for answer in answers if isinstance(answer, RequestError)]
    assert refusal.message == "request id 'r' is in use; choose another"
    assert stage.answers.text("r") == "defghijk" + "f"


def test_a_refusal_of_one_choice_refuses_the_request_and_leaves_nothing_behind() -> None:
    stage = Stage()
    stage.arrive(ask("r", "x" * 99, max_tokens=2, n=3))
    stage.run()
    assert stage.answers.refusal("r").code == "context_length_exceeded"
    assert stage.of(Arrived) == []
    assert stage.scheduler.num_waiting == 0


def test_a_choice_that_is_refused_takes_back_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    admit = stage.scheduler.admit

    def admit_two(seq: Sequence, now: float) -> None:
        if stage.scheduler.num_waiting == 2:
            raise RequestError("the queue is full; come back later", code="queue_full", status=429)
        admit(seq, now)

    monkeypatch.setattr(stage.scheduler, "admit", admit_two)
    stage.arrive(ask("r", n=3), ask("s", n=2))
    stage.run()
    assert stage.answers.refusal("r").code == "queue_full"
    assert stage.answers.text("s", 1) == "defg"
    assert [event.request for event in stage.of(Arrived)] == ["s", "s"]


# Choices and seeds


def test_every_choice_is_answered_and_the_prompt_is_computed_once() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abcdefghi", max_tokens=2, n=3))
    stage.run()
    assert [stage.answers.text("r", choice) for choice in range(3)] == ["jk", "jk", "jk"]
    assert [stage.answers.last("r", choice).num_cached for choice in range(3)] == [0, 8, 8]
    finals = [delta for delta in stage.answers.by_request["r"] if isinstance(delta, Delta) and delta.finish_reason]
    assert [delta.choice for delta in finals] == [0, 1, 2]


def test_choices_end_one_by_one_and_the_request_with_the_last() -> None:
    stage = Stage(token_at=lambda seq, position: EOS if seq == 0 and position == 4 else letter_at(seq, position))
    stage.arrive(ask("r", "abc", max_tokens=4, n=2))
    stage.arrive(ask("r", "xyz"), at_s=7.0)
    stage.run()
    assert stage.answers.last("r", 0).finish_reason is FinishReason.STOP
    assert any(isinstance(answer, RequestError) for answer in stage.answers.by_request["r"]), "choice 1 still ran"
    assert stage.answers.text("r", 1) == "defg"


def test_unseeded_choices_share_a_drawn_seed_and_differ_by_choice() -> None:
    stage = Stage()
    stage.arrive(ask("r", n=2))
    stage.run()
    first, second = joins(stage)
    assert (first.choice, second.choice) == (0, 1)
    assert first.seed == second.seed == stage.answers.last("r", 0).seed == stage.answers.last("r", 1).seed


def test_a_drawn_seed_depends_on_the_request_id_and_the_engines_seed_alone() -> None:
    def drawn(request: str, *before: str, seed: int = 0) -> int:
        stage = Stage(seed=seed)
        stage.arrive(*[ask(name) for name in before], ask(request, "hello", max_tokens=1))
        stage.run()
        return stage.answers.last(request).seed

    assert drawn("r") == drawn("r", "x", "y")
    assert drawn("r") != drawn("s")
    assert drawn("r") != drawn("r", seed=1)
    assert all(0 <= drawn(f"r{number}") < 2**63 for number in range(10)), "what a request could have asked for"


@pytest.mark.parametrize(("seed", "key"), [(7, 7), (-1, 2**64 - 1), (-(2**63), 2**63), (2**63 - 1, 2**63 - 1)])
def test_a_given_seed_is_reported_as_given_and_keyed_as_sixty_four_bits(seed: int, key: int) -> None:
    stage = Stage()
    stage.arrive(ask("r", sampling=SamplingParams(seed=seed)))
    stage.run()
    assert stage.answers.last("r").seed == seed
    assert [join.seed for join in joins(stage)] == [key]


# How answers end


def test_a_stop_string_over_token_borders_ends_the_sequence_and_is_not_shown() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=30, sampling=STOPPING))
    stage.run()
    last = stage.answers.last("r")
    assert stage.answers.text("r") == "def"
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "gh")
    assert stage.of(Finished)[0].reason is FinishReason.STOP
    assert stage.of(Finished)[0].num_output == len(stage.answers.tokens("r")) == 5
    assert len(stage.of(Submitted)) == 6, "the scheduler was told: one step was in flight, and is the last"
    assert [event.decision for event in stage.of(Applied)] == [Cancel(StepId(5), (SeqId(0),))]


def test_a_stop_string_may_be_included() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=30, sampling=replace(STOPPING, include_stop=True)))
    stage.run()
    assert stage.answers.text("r") == "defgh"


def test_text_that_may_begin_a_stop_string_is_held_and_given_back_at_the_end() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=4, sampling=STOPPING))
    stage.run()
    assert [delta.text for delta in stage.answers.deltas("r")] == ["d", "e", "f", "g"]
    assert stage.answers.last("r").finish_reason is FinishReason.LENGTH
    held = Stage()
    held.arrive(ask("r", "abc", max_tokens=6, sampling=SamplingParams(stop=("efgx",))))
    held.run()
    assert [delta.text for delta in held.answers.deltas("r")] == ["d", "", "", "", "efgh", "i"]


def test_a_stop_string_that_the_last_allowed_token_completes_is_a_stop() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=5, sampling=STOPPING))
    stage.run()
    assert (stage.answers.text("r"), stage.answers.last("r").stop_reason) == ("def", "gh")
    assert stage.of(Finished)[0].reason is FinishReason.STOP


def test_tokens_behind_a_stop_string_never_happened() -> None:
    stage = Stage(edit=in_bursts(4), queue_depth=1)
    stage.arrive(ask("r", "abc", max_tokens=30, sampling=replace(STOPPING, logprobs=0)))
    stage.arrive(ask("s", "abc", max_tokens=6), at_s=90.0)
    stage.run()
    assert [delta.tokens for delta in stage.answers.deltas("r")] == [tuple(b"defg"), tuple(b"h")]
    assert [len(delta.logprobs) for delta in stage.answers.deltas("r")] == [4, 1]
    assert [event.num_tokens for event in stage.of(Emitted)] == [4, 1, 4, 2]
    assert [event.num_output for event in stage.of(Finished)] == [5, 6]
    assert stage.answers.text("s") == "defghi"


def test_the_end_token_is_counted_and_not_shown() -> None:
    stage = Stage(token_at=says("abcde"))
    stage.arrive(ask("r", "abc", max_tokens=30))
    stage.run()
    last = stage.answers.last("r")
    assert stage.answers.text("r") == "de"
    assert stage.answers.tokens("r") == [ord("d"), ord("e"), EOS]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, None)
    assert stage.of(Finished)[0].num_output == 3


def test_a_stop_token_of_the_request_is_reported_and_not_shown() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=30, sampling=SamplingParams(stop_token_ids=(ord("f"),))))
    stage.run()
    assert (stage.answers.text("r"), stage.answers.last("r").stop_reason) == ("de", ord("f"))


def test_a_character_in_several_tokens_is_shown_when_it_is_complete() -> None:
    stage = Stage(token_at=says("abcdä!"))
    stage.arrive(ask("r", "abc", max_tokens=30))
    stage.run()
    assert [delta.text for delta in stage.answers.deltas("r")] == ["d", "", "ä", "!", ""]
    cut = Stage(token_at=says("abcdä!"))
    cut.arrive(ask("r", "abc", max_tokens=2))
    cut.run()
    assert [delta.text for delta in cut.answers.deltas("r")] == ["d", "\ufffd"]


# Aborts, failures, deadlines, the end


def test_abort_while_waiting_answers_at_once() -> None:
    stage = Stage(max_rows=1)
    stage.arrive(ask("r", max_tokens=8), ask("s"))
    stage.abort("s", at_s=4.0)
    stage.run()
    (delta,) = stage.answers.deltas("s")
    assert (delta.finish_reason, delta.tokens) == (FinishReason.ABORT, ())
    assert [event.seq for event in stage.of(Scheduled)] == [0], "it never ran"
    assert stage.answers.text("r") == "defghijk"


def test_abort_while_running_cancels_the_step_and_frees_the_memory() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abcdefghijkl", max_tokens=8), ask("s", "xyz", max_tokens=2))
    stage.abort("r", at_s=2.0)
    stage.run()
    (delta,) = stage.answers.deltas("r")
    assert delta.finish_reason is FinishReason.ABORT
    assert [(event.at_s, event.decision) for event in stage.of(Applied)] == [
        (2.0, Cancel(StepId(0), (SeqId(0),))),
        (2.0, Cancel(StepId(1), (SeqId(0),))),
    ]
    assert [event.at_s for event in stage.of(Finished) if event.request == "r"] == [2.0]
    assert stage.answers.text("s") == "de"
    stage.assert_memory_is_empty()


def test_abort_gives_back_text_that_was_held() -> None:
    stage = Stage()
    stage.arrive(ask("r", "abc", max_tokens=30, sampling=SamplingParams(stop=("defghx",))))
    stage.abort("r", at_s=5.5)
    stage.run()
    assert stage.answers.text("r") == "def"
    assert stage.answers.last("r").finish_reason is FinishReason.ABORT


def test_abort_ends_every_choice_that_still_runs() -> None:
    stage = Stage(token_at=lambda seq, position: EOS if seq == 0 else letter_at(seq, position))
    stage.arrive(ask("r", "abc", max_tokens=30, n=3))
    stage.abort("r", at_s=20.0)
    stage.run()
    reasons = [stage.answers.last("r", choice).finish_reason for choice in range(3)]
    assert reasons == [FinishReason.STOP, FinishReason.ABORT, FinishReason.ABORT]


def test_abort_of_nobody_is_nothing() -> None:
    stage = Stage()
    stage.arrive(ask("r"))
    stage.abort("x")
    stage.abort("r", at_s=50.0)
    stage.run()
    assert stage.answers.text("r") == "defg"
    assert "x" not in stage.answers.by_request


def test_one_that_cannot_be_computed_fails_alone() -> None:
    stage = Stage(edit=failing(0))
    stage.arrive(ask("r"), ask("s", "xyz"))
    stage.run()
    (delta,) = stage.answers.deltas("r")
    assert (delta.finish_reason, delta.error) == (FinishReason.ERROR, "a logit is not a number")
    assert stage.answers.text("s") == "defg"
    stage.assert_memory_is_empty()


def test_a_deadline_that_passes_in_the_queue_wakes_the_engine_and_ends_the_wait() -> None:
    stage = Stage(max_rows=1)
    stage.arrive(ask("r", "abc" * 4, max_tokens=2), ask("late", deadline_s=7.0), ask("patient", deadline_s=999.0))
    stage.run()
    (delta,) = stage.answers.deltas("late")
    assert delta.finish_reason is FinishReason.ERROR
    assert delta.error is not None
    assert delta.error.startswith("deadline_exceeded: still waiting 0.000 s after its deadline")
    assert [event.at_s for event in stage.of(Finished) if event.request == "late"] == [7.0]
    assert stage.answers.text("patient") == "defg"


def test_a_deadline_that_passes_while_running_cancels_the_step_and_frees_the_memory() -> None:
    stage = Stage()
    stage.arrive(ask("late", "abcdefghijkl", max_tokens=30, deadline_s=14.5), ask("other", "xyz", max_tokens=8))
    stage.run()
    last = stage.answers.last("late")
    assert last.finish_reason is FinishReason.ERROR
    assert last.error == "deadline_exceeded: still running 0.000 s after its deadline; send less work at once"
    assert [event.at_s for event in stage.of(Finished) if event.request == "late"] == [14.5]
    assert [event.at_s for event in stage.of(Applied)] == [14.5, 14.5]
    assert stage.answers.text("other") == "defghijk"
    stage.assert_memory_is_empty()


def test_a_deadline_that_has_passed_on_arrival_is_answered_at_once() -> None:
    stage = Stage()
    stage.arrive(ask("r", deadline_s=0.0), at_s=3.0)
    stage.run()
    error = stage.answers.last("r").error
    assert error is not None
    assert "3.000 s after" in error
    assert stage.of(Submitted) == []


def test_a_step_that_takes_too_long_is_taken_for_a_hang() -> None:
    stage = Stage(step_limit_s=5.0)
    stage.arrive(ask("r", "abcde", max_tokens=1))
    stage.arrive(ask("s", "tuvwxyzabc", max_tokens=1), at_s=20.0)
    with pytest.raises(InvariantError) as caught:
        stage.run()
    assert str(caught.value).startswith(
        "step 1 on lane 0 has run for 5 s, its limit is 5 s; taken for a hang. It computes sequence 1 [0, 10); 0 "
        "waiting behind it; simulated: steps in flight: 1 on lane 0; running: 1 (0 of 10 computed); "
        "60 of 64 pages free;"
    )
    assert str(caught.value).endswith("; 0 waiting")
    assert stage.answers.text("r") == "f"


def test_closing_aborts_everything_and_refuses_what_comes_behind() -> None:
    stage = Stage(max_rows=1)
    stage.arrive(ask("r", max_tokens=30), ask("s"))
    stage.script.at(5.5, Close())
    stage.script.at(5.5, Arrive(ask("late")))
    stage.script.deliver()
    stage.engine.run()
    assert stage.answers.text("r") == "def"
    assert stage.answers.last("r").finish_reason is stage.answers.last("s").finish_reason is FinishReason.ABORT
    refusal = stage.answers.refusal("late")
    assert (refusal.status, refusal.code) == (503, "closing")
    assert stage.now() < 7.0, "nothing is waited for"
    assert stage.answers.batches[-1][1] == 3, "the last answers are delivered"
    assert not stage.engine.health().ok


def test_health_counts_who_waits_and_who_runs() -> None:
    stage = Stage(max_rows=1)
    stage.arrive(ask("r"), ask("s"), ask("t"))
    stage.tick()
    health = stage.engine.health()
    assert (health.ok, health.num_running, health.num_waiting) == (True, 1, 2)


def test_what_has_ended_leaves_nothing_behind() -> None:
    def num_alive() -> int:
        gc.collect()
        return sum(isinstance(found, Sequence | TextStream) for found in gc.get_objects())

    before = num_alive()
    stage = Stage(num_blocks=8, edit=failing(3))
    for number in range(8):
        stage.arrive(ask(f"r{number}", "abcde", max_tokens=6, n=2), at_s=2.0 * number)
    stage.abort("r5", at_s=20.0)
    stage.run()
    assert len(stage.of(Finished)) == 16
    assert num_alive() == before


# The event stream


def test_the_stream_begins_with_the_executor() -> None:
    stage = Stage(max_rows=3)
    stage.arrive(ask("r"))
    stage.run()
    first, *rest = stage.events
    assert isinstance(first, Started)
    assert (first.at_s, first.info) == (0.0, stage.device.info)
    assert not any(isinstance(event, Started) for event in rest)


def test_events_pair_up_and_time_never_goes_back() -> None:
    stage = Stage(num_blocks=10, max_rows=3, edit=failing(2))
    for number in range(12):
        stage.arrive(
            ask(f"r{number}", "abcdefg"[: number % 7 + 1], max_tokens=9, n=1 + number % 2), at_s=1.0 + 3.0 * number
        )
    stage.arrive(ask("bad", n=0), at_s=5.0)
    stage.abort("r4", at_s=30.0)
    stage.run()
    assert all(first.at_s <= second.at_s for first, second in pairwise(stage.events))
    arrived = [event.seq for event in stage.of(Arrived)]
    assert sorted(event.seq for event in stage.of(Finished)) == arrived
    assert len(set(arrived)) == len(arrived) == 18
    assert {event.seq for event in stage.of(Scheduled)} <= set(arrived)
    assert [event.request for event in stage.of(Refused)] == ["bad"]
    assert {event.reason for event in stage.of(Finished)} == {
        FinishReason.LENGTH,
        FinishReason.ERROR,
        FinishReason.ABORT,
    }
    for event in stage.of(Finished):
        assert event.arrival_s <= (event.scheduled_s or event.at_s) <= (event.first_token_s or event.at_s) <= event.at_s
    stage.assert_memory_is_empty()


def test_what_was_emitted_is_what_was_answered() -> None:
    stage = Stage(edit=in_bursts(3), queue_depth=1)
    stage.arrive(ask("r", "ab", max_tokens=10, n=2), ask("s", "abcd", max_tokens=30, sampling=STOPPING))
    stage.run()
    emitted = sum(event.num_tokens for event in stage.of(Emitted))
    finished = sum(event.num_output for event in stage.of(Finished))
    answered = len(stage.answers.tokens("r", 0) + stage.answers.tokens("r", 1) + stage.answers.tokens("s"))
    assert emitted == finished == answered


def test_requests_of_one_id_in_a_row_are_different_sequences() -> None:
    stage = Stage()
    stage.arrive(ask("r", max_tokens=1))
    stage.arrive(ask("r", max_tokens=1), at_s=10.0)
    stage.run()
    assert [(event.request, event.seq) for event in stage.of(Finished)] == [(RequestId("r"), 0), (RequestId("r"), 1)]
