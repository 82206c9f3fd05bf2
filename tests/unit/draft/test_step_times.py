"""What steps took says what others will take."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.draft.step_times import FORGOTTEN_AFTER, StepTimes


def test_between_two_numbers_of_rows_the_time_lies_between_theirs() -> None:
    times = StepTimes()
    times.note(1, 0.010)
    times.note(5, 0.018)
    assert times.seconds(1) == 0.010
    assert times.seconds(3) == pytest.approx(0.014)


def test_beyond_all_that_was_seen_rows_cost_what_the_last_ones_did_or_a_fifth_of_a_step() -> None:
    times = StepTimes()
    times.note(1, 0.010)
    assert times.seconds(6) == pytest.approx(0.020)
    times.note(2, 0.020)
    assert times.seconds(4) == pytest.approx(0.040)


def test_one_stray_step_moves_a_mean_by_a_few_hundredths() -> None:
    times = StepTimes()
    for _ in range(50):
        times.note(1, 0.010)
    times.note(1, 3.0)
    assert times.seconds(1) < 0.011


def test_a_machine_that_became_slower_is_believed_soon() -> None:
    times = StepTimes()
    for _ in range(50):
        times.note(1, 0.010)
    for _ in range(40):
        times.note(1, 0.020)
    assert times.seconds(1) > 0.019


def test_the_first_step_of_its_rows_counts_as_at_most_twice_what_is_said_of_them() -> None:
    times = StepTimes()
    times.note(1, 0.010)
    times.note(3, 2.0)
    assert times.seconds(3) == pytest.approx(2 * 0.014)


def test_a_time_that_was_seen_once_is_soon_forgotten_and_one_that_was_seen_often_later() -> None:
    times = StepTimes()
    times.note(1, 0.010)
    for _ in range(20):
        times.note(2, 0.019)
    times.note(3, 0.035)
    told = []
    for _ in range(10 * FORGOTTEN_AFTER):
        times.note(1, 0.010)
        told.append((times.seconds(2), times.seconds(3)))
    assert told[0] == (pytest.approx(0.019), pytest.approx(0.035))
    # Of three rows soon no more is known than what two say of them, and of those in the end no more than one says.
    assert told[3 * FORGOTTEN_AFTER] == (pytest.approx(0.019), pytest.approx(0.028))
    assert told[-1] == (pytest.approx(0.012), pytest.approx(0.014))


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(1e-4, 1.0)), min_size=1, max_size=40))
def test_more_rows_never_take_less_time(seen: list[tuple[int, float]]) -> None:
    times = StepTimes()
    for rows, seconds in seen:
        times.note(rows, seconds)
    told = [times.seconds(rows) for rows in range(1, 60)]
    assert all(after >= before * (1 - 1e-12) for before, after in pairwise(told))
    assert told[0] > 0.0
