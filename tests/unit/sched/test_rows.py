"""Rows: a lane may take at once what was left on it, another lane only when the leave is known."""

from __future__ import annotations

import pytest

from plait.core.errors import InvariantError
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import Leave
from plait.sched.rows import Rows

ONE, TWO = LaneId(0), LaneId(1)


def test_rows_are_taken_in_order_and_come_back_in_the_order_they_were_left() -> None:
    rows = Rows(3)
    assert [rows.take(ONE) for _ in range(3)] == [0, 1, 2]
    for row in (2, 0):
        rows.leave(SeqId(row), row, ONE)
    assert rows.num_free(ONE) == 2
    assert [rows.take(ONE) for _ in range(2)] == [2, 0]
    with pytest.raises(InvariantError, match="none of the 3 rows is free on lane 0"):
        rows.take(ONE)


def test_every_leave_is_told_once_by_the_next_step_of_its_lane() -> None:
    rows = Rows(4)
    for seq in range(3):
        rows.take(ONE)
        rows.leave(SeqId(seq), seq, TWO if seq == 1 else ONE)
    assert rows.submitted(StepId(7), ONE) == (Leave(SeqId(0)), Leave(SeqId(2)))
    assert rows.submitted(StepId(8), ONE) == ()
    assert rows.submitted(StepId(9), TWO) == (Leave(SeqId(1)),)


def test_another_lane_gets_a_row_when_the_step_that_leaves_it_was_collected() -> None:
    rows = Rows(1)
    rows.leave(SeqId(5), rows.take(ONE), ONE)
    assert (rows.num_free(ONE), rows.num_free(TWO)) == (1, 0)
    rows.submitted(StepId(3), ONE)
    rows.collected(StepId(2))
    assert rows.num_free(TWO) == 0
    rows.collected(StepId(3))
    assert rows.num_free(TWO) == 1
    assert rows.take(TWO) == 0


def test_a_lane_tells_the_leaves_of_others_unless_steps_there_name_them() -> None:
    rows = Rows(2)
    for seq in (4, 5):
        rows.leave(SeqId(seq), rows.take(ONE), ONE)
    assert (rows.num_free(TWO), rows.num_untold) == (0, 2)
    rows.gather(TWO, lambda seq: seq == 5)
    assert (rows.num_free(TWO), rows.num_free(ONE)) == (1, 1)
    assert rows.take(TWO) == 0
    assert rows.submitted(StepId(0), TWO) == (Leave(SeqId(4)),)
    assert rows.submitted(StepId(1), ONE) == (Leave(SeqId(5)),)
    assert rows.num_untold == 0
    rows.check([0])


def test_a_row_that_was_taken_again_is_not_freed_by_the_step_that_left_it() -> None:
    rows = Rows(1)
    rows.leave(SeqId(0), rows.take(ONE), ONE)
    rows.take(ONE)
    rows.submitted(StepId(0), ONE)
    rows.leave(SeqId(1), 0, ONE)
    rows.collected(StepId(0))
    assert rows.num_free(TWO) == 0, "the second leave is not even told"
    rows.check([])


@pytest.mark.parametrize("taken", [[], [0, 1], [1]])
def test_a_row_that_is_lost_or_there_twice_is_found(taken: list[int]) -> None:
    rows = Rows(3)
    rows.take(ONE)
    rows.check([0])
    with pytest.raises(InvariantError, match="are free or taken; there are 3, each once"):
        rows.check(taken)
