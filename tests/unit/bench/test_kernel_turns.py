"""Turns: the order of samples and what is made of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bench.kernel.turns import Effort, in_turns, spread, weighted_geomean


def takes(log: list[str], clock: Callable[[str, int], float]) -> dict[str, Callable[[int], float]]:
    def take(name: str) -> Callable[[int], float]:
        def run(calls: int) -> float:
            log.append(name)
            return clock(name, calls)

        return run

    return {name: take(name) for name in "abc"}


def test_samples_go_there_and_back_again_after_two_that_do_not_count() -> None:
    log: list[str] = []
    found = in_turns(takes(log, lambda name, calls: calls * 0.001), Effort(0.001, num_rounds=2))
    assert "".join(log) == "aabbcc" + "abccba" * 2
    assert [one.num_samples for one in found.values()] == [4, 4, 4]


def test_a_machine_that_slows_down_steadily_favours_nobody() -> None:
    log: list[str] = []
    found = in_turns(takes(log, lambda name, calls: calls * (1.0 + 0.01 * len(log))), Effort(1e-9, num_rounds=8))
    assert found["a"].seconds == pytest.approx(found["b"].seconds) == pytest.approx(found["c"].seconds)


def test_short_calls_are_repeated_until_a_sample_is_long_enough() -> None:
    calls_seen: list[int] = []

    def take(calls: int) -> float:
        calls_seen.append(calls)
        return calls / 2**19

    found = in_turns({"short": take}, Effort(sample_s=2**-10, num_rounds=1))
    assert calls_seen == [1, 1, 512, 512]
    assert found["short"].seconds == 2**-19


def test_the_median_or_the_shortest_with_the_quarters_around_it() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]).seconds == 3.0
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]).iqr_fraction == pytest.approx(2 / 3)
    assert spread([5.0, 1.0, 3.0], takes_best=True).seconds == 1.0
    assert spread([7.0]).quarter == 7.0


def test_a_weighted_mean_counts_what_weighs_more() -> None:
    assert weighted_geomean({1: 4.0, 2: 1.0}, lambda key: 1.0) == pytest.approx(2.0)
    assert weighted_geomean({1: 4.0, 3: 1.0}, lambda key: 1 / key) == pytest.approx(4.0**0.75)
