"""Where the device works while we do, an answer is made when the next step is on its way, and is the same."""

from __future__ import annotations

import pytest
from tests.unit.engine.kit import Stage, ask, in_bursts

from plait.core.events import Emitted, Finished, Submitted
from plait.core.request import FinishReason
from plait.core.sampling import SamplingParams


def played(*, plans_first: bool, queue_depth: int = 1, **how: int) -> Stage:
    stage = Stage(plans_first=plans_first, queue_depth=queue_depth, enable_prefix=False, **how)
    stage.arrive(
        ask("long", max_tokens=12),
        ask("stopped", "abcd", max_tokens=20, sampling=SamplingParams(stop=("hi",))),
        ask("short", "ab", max_tokens=3),
    )
    stage.run()
    stage.assert_memory_is_empty()
    return stage


def in_turn(stage: Stage) -> list[str]:
    """What happened to "long": each of its steps as it was submitted, and each of its tokens as it was said."""
    seq = next(event.seq for event in stage.of(Finished) if event.request == "long")
    return [
        "step" if isinstance(event, Submitted) else "token"
        for event in stage.events
        if (isinstance(event, Submitted) and any(one.seq == seq for one in event.plan.chunks))
        or (isinstance(event, Emitted) and event.seq == seq)
    ]


def test_the_next_step_comes_before_the_answer_to_the_last_one() -> None:
    assert in_turn(played(plans_first=False)) == ["step", "token"] * 12
    assert in_turn(played(plans_first=True)) == ["step", *["step", "token"] * 11, "token"]


@pytest.mark.parametrize("queue_depth", [1, 2])
@pytest.mark.parametrize("max_rows", [1, 2, 4])
def test_answers_are_the_same(queue_depth: int, max_rows: int) -> None:
    before, after = (
        played(plans_first=plans_first, queue_depth=queue_depth, max_rows=max_rows) for plans_first in (False, True)
    )
    for request in ("long", "stopped", "short"):
        assert before.answers.tokens(request) == after.answers.tokens(request)
        assert before.answers.text(request) == after.answers.text(request)
        assert before.answers.last(request).finish_reason is after.answers.last(request).finish_reason


def test_a_stop_string_ends_its_sequence_though_its_next_step_is_on_its_way() -> None:
    stage = played(plans_first=True)
    assert stage.answers.text("stopped") == "efg"
    assert stage.answers.last("stopped").finish_reason is FinishReason.STOP
    (finished,) = [event for event in stage.of(Finished) if event.request == "stopped"]
    assert finished.num_output == 5
    seq = finished.seq
    assert sum(any(one.seq == seq for one in event.plan.chunks) for event in stage.of(Submitted)) == 6


def test_whoever_waits_for_his_place_gets_it_at_once() -> None:
    """The only row is free when the stop string was found: nobody waits for a message that never comes."""
    stage = Stage(plans_first=True, queue_depth=1, max_rows=1, enable_prefix=False)
    stage.arrive(ask("first", max_tokens=30, sampling=SamplingParams(stop=("g",))), ask("second", max_tokens=2))
    stage.run()
    assert stage.answers.text("first") == "def"
    assert stage.answers.text("second") == "de"


def test_a_deadline_that_has_come_ends_who_was_answered_before() -> None:
    stage = Stage(plans_first=True, queue_depth=1, enable_prefix=False)
    stage.arrive(ask("late", max_tokens=30, deadline_s=9.0), ask("other", "abcd", max_tokens=8))
    stage.run()
    last = stage.answers.last("late")
    assert "deadline" in (last.error or "")
    assert stage.answers.tokens("late") == [ord("d") + place for place in range(len(stage.answers.tokens("late")))]
    stage.assert_memory_is_empty()


def test_several_tokens_of_a_step_are_answered_as_far_as_they_count() -> None:
    stage = Stage(plans_first=True, queue_depth=1, enable_prefix=False, edit=in_bursts(3))
    stage.arrive(ask("burst", max_tokens=30, sampling=SamplingParams(stop=("h",))))
    stage.run()
    assert stage.answers.text("burst") == "defg"
    stage.assert_memory_is_empty()
