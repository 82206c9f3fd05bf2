"""Histograms count a value in the first bucket that holds it."""

from __future__ import annotations

from plait.metrics.histogram import Histogram


def test_a_value_on_a_bound_belongs_to_it_and_one_behind_the_last_to_infinity() -> None:
    made = Histogram((0.1, 1.0))
    for value in (0.1, 0.11, 1.0, 5.0):
        made.add(value)
    made.add(0.0, times=2)
    assert made.cumulative() == [("0.1", 3.0), ("1.0", 5.0), ("+Inf", 6.0)]
    assert made.count == 6
    assert made.total == 0.1 + 0.11 + 1.0 + 5.0


def test_a_percentile_is_the_bound_of_its_bucket() -> None:
    made = Histogram((0.1, 1.0))
    assert made.at_most(0.5) is None, "there are no values"
    for value in (0.1, 0.5, 0.5, 5.0):
        made.add(value)
    assert [made.at_most(fraction) for fraction in (0.25, 0.3, 0.75, 0.99)] == [0.1, 1.0, 1.0, None]
