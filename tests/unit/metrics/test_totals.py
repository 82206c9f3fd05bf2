"""Totals: counters that follow the events, and one sentence about what kept the engine from being faster."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.conformance.drafting import Guesser
from tests.unit.engine.kit import INFO, Stage, ask, failing, letter_at

from plait.assembly import Drafting
from plait.core.decision import Blocked
from plait.core.events import (
    Arrived,
    Collected,
    Emitted,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
    Started,
    Submitted,
)
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.request import FinishReason, ServiceClass
from plait.core.step import Chunk, StepPlan, StepResult, StepStatus
from plait.draft.depth import FixedDepth
from plait.metrics.totals import Totals


def submitted(at_s: float, step: int, num_tokens: int = 1, *, blocked: Blocked | None = None) -> Submitted:
    chunk = Chunk(SeqId(0), 0, num_tokens, (7,) * num_tokens)
    return Submitted(at_s, StepPlan(StepId(step), LaneId(0), (), (), (), (chunk,)), 5, 3, blocked)


def collected(start_s: float, end_s: float, step: int) -> Collected:
    return Collected(end_s, StepResult(StepId(step), LaneId(0), StepStatus.COMPLETED, start_s, end_s, 1, ()))


def finished(at_s: float, num_prompt: int) -> Finished:
    return Finished(at_s, RequestId("r"), SeqId(0), FinishReason.STOP, num_prompt, 0, 3, 0, 0.0, 0.0, 0.0)


def totals_of(*events: Event) -> Totals:
    totals = Totals()
    for event in events:
        totals(event)
    return totals


def busy_run(num_steps: int, blocked: Blocked | None, num_blocked: int) -> Totals:
    """Steps of a second without a gap, the first of them with sequences left waiting."""
    events: list[Event] = []
    for step in range(num_steps):
        events.append(submitted(float(step), step, blocked=blocked if step < num_blocked else None))
        events.append(collected(float(step), step + 1.0, step))
    return totals_of(*events)


def test_before_the_first_event_nothing_has_happened() -> None:
    totals = totals_of()
    assert (totals.elapsed_s, totals.num_steps, totals.first_s) == (0.0, 0, None)
    assert totals.limit() == "input: the engine waited for requests"


def test_every_kind_of_event_is_counted_where_it_belongs() -> None:
    totals = totals_of(
        Started(3.0, INFO),
        Arrived(10.0, RequestId("r"), SeqId(0), ServiceClass.ONLINE, 8),
        Refused(10.5, RequestId("s"), "too_long", "too long"),
        Scheduled(11.0, SeqId(0), 6),
        submitted(11.0, 0, 2),
        collected(11.0, 13.5, 0),
        Emitted(13.5, SeqId(0), 3),
        Preempted(14.0, SeqId(0), 2),
        finished(15.0, 8),
    )
    assert (totals.first_s, totals.last_s, totals.elapsed_s) == (10.0, 15.0, 5.0)
    assert (totals.cached_tokens, totals.computed_tokens, totals.num_preemptions, totals.num_steps) == (6, 2, 1, 1)
    assert totals.busy_s == 2.5


def test_an_engine_that_waits_most_of_the_time_is_limited_by_its_input() -> None:
    steps: list[Event] = [submitted(0.0, 0, blocked=Blocked.BY_MEMORY), collected(0.0, 7.9, 0)]
    assert totals_of(*steps, finished(10.0, 1)).limit() == "input: the engine waited for requests"
    assert totals_of(*steps, finished(9.8, 1)).limit().startswith("cache memory")


@pytest.mark.parametrize(
    ("blocked", "num_blocked", "limit"),
    [
        (None, 0, "compute"),
        (Blocked.BY_BUDGET, 100, "compute"),
        (Blocked.BY_PREFIX, 100, "compute"),
        (Blocked.BY_MEMORY, 21, "cache memory: requests waited for blocks; a larger --kv-cache-memory would help"),
        (Blocked.BY_MEMORY, 20, "compute"),
        (Blocked.BY_ROWS, 21, "compute, with more requests waiting than --max-num-seqs lets run at once"),
        (Blocked.BY_ROWS, 20, "compute"),
    ],
)
def test_a_busy_engine_is_limited_by_what_ended_its_plans(
    blocked: Blocked | None, num_blocked: int, limit: str
) -> None:
    assert busy_run(100, blocked, num_blocked).limit() == limit


def test_counters_never_go_down() -> None:
    stage = Stage(num_blocks=8, edit=failing(2))
    totals = Totals()
    names = [field.name for field in fields(Totals) if field.name != "first_s"]
    before = [0.0] * len(names)
    for number in range(6):
        stage.arrive(ask(f"r{number}", "abcde", max_tokens=7), at_s=2.0 * number)
    stage.run()
    for event in stage.events:
        totals(event)
        now = [getattr(totals, name) for name in names]
        assert all(old <= new for old, new in zip(before, now, strict=True))
        before = now


def replayed(stage: Stage) -> Totals:
    stage.run()
    return totals_of(*stage.events)


def test_the_numbers_of_a_whole_run_fit_together() -> None:
    stage = Stage()
    stage.arrive(*[ask(f"r{number}", "abcdefgh", max_tokens=3) for number in range(3)])
    totals = replayed(stage)
    assert (totals.cached_tokens, totals.num_preemptions, totals.num_steps) == (14, 0, len(stage.of(Submitted)))
    # The last token of an answer is never computed, and what was found in the index is not computed either.
    assert totals.computed_tokens == 24 - 14 + 9 - 3
    assert totals.busy_s == totals.elapsed_s == totals.computed_tokens


def test_many_long_prompts_are_limited_by_compute_and_not_by_memory() -> None:
    stage = Stage(num_blocks=200, max_step_tokens=8, max_rows=8)
    stage.arrive(*[ask(f"r{number}", chr(97 + number) * 16, max_tokens=1) for number in range(8)])
    assert replayed(stage).limit() == "compute"


def test_too_few_rows_are_named() -> None:
    stage = Stage(num_blocks=200, max_rows=1)
    stage.arrive(*[ask(f"r{number}", chr(97 + number) * 3) for number in range(8)])
    assert "--max-num-seqs" in replayed(stage).limit()


def test_too_little_memory_is_named() -> None:
    stage = Stage(num_blocks=6)
    stage.arrive(*[ask(f"r{number}", chr(97 + number) * 7, max_tokens=12) for number in range(8)])
    assert replayed(stage).limit().startswith("cache memory")


def test_requests_far_apart_leave_the_engine_waiting() -> None:
    stage = Stage()
    for number in range(4):
        stage.arrive(ask(f"r{number}"), at_s=100.0 * number)
    assert replayed(stage).limit().startswith("input")


def test_drafts_and_the_steps_that_they_saved_are_counted() -> None:
    guesses = Guesser(lambda tokens, most: [letter_at(SeqId(0), len(tokens)), ord("!")])
    stage = Stage(drafting=Drafting(guesses, FixedDepth()))
    stage.arrive(ask("a", "abc", max_tokens=8))
    stage.run()
    plain = Stage()
    plain.arrive(ask("a", "abc", max_tokens=8))
    plain.run()
    totals = replayed(stage)
    told = {"drafts": 3, "proposed": 5, "accepted": 3, "depth": 1.667, "saved_steps": 3}
    assert totals.drafts.json_object() == told
    assert totals.num_steps == replayed(plain).num_steps - 3
    assert totals.drafts.text() == "5 tokens in 3 drafts, 3 right (60%)"
    assert replayed(plain).drafts.json_object() == dict.fromkeys(told, 0)
