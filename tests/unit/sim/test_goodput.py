"""Goodput: the search for the highest rate that holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plait.sim.goodput import WIDTH, Point, Search, search


def found(holds: Callable[[float], float], start: float = 1.0, *, steady: float = 1e9) -> tuple[Search, list[float]]:
    tried: list[float] = []

    def try_rate(rate: float) -> Point:
        tried.append(rate)
        return Point(rate, 100, True, (holds(rate), holds(rate)), (rate, rate), (rate <= steady,) * 2)

    return search(try_rate, start, 0.99, floor=start / 1024), tried


@pytest.mark.parametrize("limit", [0.013, 0.7, 1.0, 5.3, 900.0])
def test_the_highest_rate_is_found_from_either_side(limit: float) -> None:
    result, tried = found(lambda rate: 1.0 if rate <= limit else 0.5)
    assert result.rate is not None
    assert limit * (1 - WIDTH) <= result.rate <= limit
    assert result.is_monotone
    assert result.is_enclosed
    assert len(tried) == len(set(tried)) < 25
    assert [point.rate for point in result.points] == sorted(tried)


def test_a_target_that_never_holds_ends_the_search() -> None:
    result, tried = found(lambda rate: 0.0)
    assert result.rate is None
    assert min(tried) == 1 / 1024


def test_a_target_that_always_holds_is_said_to_have_no_end() -> None:
    result, _ = found(lambda rate: 1.0)
    assert result.rate is not None
    assert not result.is_enclosed


def test_a_growing_queue_does_not_hold_whatever_the_latencies() -> None:
    result, _ = found(lambda rate: 1.0, steady=6.0)
    assert result.rate is not None
    assert 5.8 <= result.rate <= 6.0


def test_a_rate_that_holds_above_one_that_does_not_is_not_the_answer() -> None:
    result, _ = found(lambda rate: 1.0 if rate <= 3.0 or 5.9 < rate < 7.0 else 0.5)
    assert result.rate is not None
    assert result.rate <= 3.0
    odd, _ = found(lambda rate: 0.5 if 1.5 < rate < 2.5 else float(rate < 9.0), start=3.0)
    assert odd.is_monotone, "a hole that nobody looked into"
    hole, _ = found(lambda rate: 0.5 if rate == 6.0 else float(rate <= 6.5), start=3.0)
    assert hole.rate is not None
    assert hole.rate < 6.0
