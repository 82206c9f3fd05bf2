"""Comparison: the order of turns, and ratios that compare within a cycle only."""

from __future__ import annotations

import pytest
from bench.serving.comparison import Ratio, Turn, fraction_of, headlines, ratio, turns
from bench.serving.figures import Figures
from bench.serving.workloads import workloads_named

W3, W4 = workloads_named("w3,w4")


def rate(value: float, *, errors: int = 0, short: int = 0) -> Figures:
    return Figures({"output_tokens_per_s": value}, errors, short, "")


def seconds(value: float) -> Figures:
    return Figures({"seconds": value}, 0, 0, "")


def test_a_cycle_is_a_b_b_a_and_the_peer_is_started_once_in_it() -> None:
    assert turns(2) == [
        Turn(0, 0, 1),
        Turn(1, 0, 2),
        Turn(0, 0, 1),
        Turn(0, 1, 1),
        Turn(1, 1, 2),
        Turn(0, 1, 1),
    ]


def test_a_machine_that_slows_down_steadily_changes_no_ratio() -> None:
    speed = [1.0, 0.9, 0.81, 0.729]
    ours, theirs = [[rate(200 * speed[0]), rate(200 * speed[3])]], [[rate(100 * speed[1]), rate(100 * speed[2])]]
    assert ratio(W3, ours, theirs) == Ratio(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0), 1)


def test_the_ratio_is_the_median_over_cycles() -> None:
    found = ratio(W3, [[rate(10)], [rate(30)], [rate(80)]], [[rate(10)], [rate(10)], [rate(20)]])
    assert found == Ratio(pytest.approx(3.0), pytest.approx(1.0), pytest.approx(4.0), 3)


def test_fewer_seconds_are_better() -> None:
    found = ratio(W4, [[seconds(20)]], [[seconds(50)]])
    assert found is not None
    assert found.median == pytest.approx(2.5)
    assert fraction_of(W4, 20.0, 5.0) == pytest.approx(0.25)
    assert fraction_of(W3, 50.0, 200.0) == pytest.approx(0.25)


def test_samples_with_errors_or_short_answers_win_nothing() -> None:
    assert headlines(W3, [rate(900, errors=1), rate(800, short=1), rate(100), Figures({}, 0, 0, "")]) == [100]
    only_the_second = Ratio(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0), 1)
    assert ratio(W3, [[rate(900, errors=1)], [rate(20)]], [[rate(10)], [rate(10)]]) == only_the_second
    assert ratio(W3, [[rate(900, short=1)]], [[rate(10)]]) is None
