"""Deadlines: found in order, forgotten with their sequences."""

from __future__ import annotations

from tests.unit.sched.test_waiting import make_seq

from plait.sched.deadlines import Deadlines


def test_deadlines_are_found_and_the_earliest_is_known() -> None:
    deadlines = Deadlines()
    soon, later, never = make_seq(1, deadline_s=5.0), make_seq(2, deadline_s=8.0), make_seq(3)
    for seq in (never, later, soon):
        deadlines.add(seq)
    assert deadlines.earliest() == 5.0
    assert deadlines.passed(4.9) == []
    assert deadlines.passed(5.0) == [(soon, 0.0)]
    assert deadlines.passed(9.0) == [(soon, 4.0), (later, 1.0)]
    deadlines.remove(soon)
    assert deadlines.earliest() == 8.0
    deadlines.remove(never)
    deadlines.remove(later)
    assert deadlines.earliest() is None
    assert deadlines.passed(99.0) == []


def test_equal_deadlines_come_in_order_of_admission() -> None:
    deadlines = Deadlines()
    first, second = make_seq(1, deadline_s=5.0), make_seq(2, deadline_s=5.0, priority=-1)
    deadlines.add(second)
    deadlines.add(first)
    assert [seq for seq, _ in deadlines.passed(5.0)] == [first, second]
    deadlines.remove(first)
    assert [seq for seq, _ in deadlines.passed(5.0)] == [second]
