"""The watchdog times the step that could run, and no other."""

from __future__ import annotations

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import Chunk, StepPlan
from plait.engine.watchdog import Watchdog

ONE, TWO = LaneId(0), LaneId(1)


def plan(step: int, lane: LaneId = ONE, num_tokens: int = 2) -> StepPlan:
    chunk = Chunk(SeqId(step), 4, num_tokens, (7,) * num_tokens)
    return StepPlan(StepId(step), lane, (), (), (), (chunk,))


def test_a_step_is_overdue_when_its_limit_has_passed_and_is_named_with_what_it_computes() -> None:
    dog = Watchdog(10.0, 0.0)
    dog.submitted(plan(3), 1.0)
    dog.submitted(plan(4), 2.0)
    assert dog.wake_at() == 11.0
    assert dog.overdue(10.9) is None
    assert dog.overdue(11.0) == (
        "step 3 on lane 0 has run for 10 s, its limit is 10 s; taken for a hang. It computes sequence 3 [4, 6); 1 "
        "waiting behind it"
    )


def test_a_step_behind_another_is_timed_from_its_turn() -> None:
    dog = Watchdog(10.0, 0.0)
    dog.submitted(plan(0), 0.0)
    dog.submitted(plan(1), 0.0)
    dog.collected(StepId(0), 8.0)
    assert dog.wake_at() == 18.0
    dog.collected(StepId(1), 9.0)
    assert dog.wake_at() is None
    dog.submitted(plan(2), 30.0)
    assert dog.wake_at() == 40.0


def test_a_queued_step_that_ends_early_changes_nothing_for_the_oldest() -> None:
    dog = Watchdog(10.0, 0.0)
    dog.submitted(plan(0), 0.0)
    dog.submitted(plan(1), 1.0)
    dog.collected(StepId(1), 5.0)
    assert dog.wake_at() == 10.0


def test_time_stands_still_while_the_lane_is_suspended() -> None:
    dog = Watchdog(10.0, 0.0)
    dog.submitted(plan(0), 0.0)
    dog.suspended(ONE, 4.0)
    assert dog.wake_at() is None
    assert dog.overdue(1000.0) is None
    dog.resumed(ONE, 1000.0)
    assert dog.wake_at() == 1006.0
    assert dog.overdue(1006.0) is not None


def test_time_stands_still_while_the_lane_has_no_share() -> None:
    dog = Watchdog(10.0, 0.0)
    dog.submitted(plan(0), 0.0)
    dog.assigned({ONE: (), TWO: (0, 1)}, 3.0)
    dog.submitted(plan(1, TWO), 3.0)
    assert dog.wake_at() == 13.0
    dog.collected(StepId(1), 5.0)
    assert dog.wake_at() is None
    dog.assigned({ONE: (0,), TWO: (1,)}, 20.0)
    dog.assigned({ONE: (0, 1), TWO: ()}, 22.0)
    assert dog.wake_at() == 27.0


def test_lanes_are_timed_apart() -> None:
    dog = Watchdog(10.0, 0.0)
    dog.submitted(plan(0), 0.0)
    dog.submitted(plan(1, TWO), 6.0)
    dog.collected(StepId(0), 9.0)
    assert dog.wake_at() == 16.0
    found = dog.overdue(16.0)
    assert found is not None
    assert found.startswith("step 1 on lane 1")


def test_many_tokens_may_take_long() -> None:
    dog = Watchdog(10.0, 3.0)
    dog.submitted(plan(0, num_tokens=100), 0.0)
    assert dog.wake_at() == 300.0
    dog.collected(StepId(0), 1.0)
    dog.submitted(plan(1, num_tokens=1), 1.0)
    assert dog.wake_at() == 11.0
