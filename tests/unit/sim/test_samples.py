"""Distributions in memory that does not grow."""

from __future__ import annotations

import random

import pytest

from plait.sim import samples
from plait.sim.samples import Samples, distribution


def test_samples_with_counts_are_as_many_single_ones() -> None:
    rng = random.Random(1)
    entries = [(rng.random(), rng.randint(1, 5)) for _ in range(200)]
    grouped, single = Samples(), Samples()
    for value, count in entries:
        grouped.add(value, count)
        for _ in range(count):
            single.add(value)
    one, other = grouped.distribution(), single.distribution()
    assert one is not None
    assert other is not None
    assert (one.count, one.p50, one.p90, one.p99, one.longest) == (
        other.count,
        other.p50,
        other.p90,
        other.p99,
        other.longest,
    )
    assert one.mean == pytest.approx(other.mean, rel=1e-12)


def test_equal_samples_in_a_row_are_one_entry_and_count_each() -> None:
    """As the gaps of all sequences of a step are equal."""
    found = Samples()
    for value in (2.0, 2.0, 2.0, 5.0, 2.0, 0.0, 0.0):
        found.add(value)
    one = found.distribution()
    assert one is not None
    assert (one.count, one.mean, one.p50, one.longest) == (7, 13.0 / 7, 2.0, 5.0)
    assert found._entries == [(2.0, 3), (5.0, 1), (2.0, 1), (0.0, 2)]


def test_many_samples_take_no_more_memory_and_stay_within_a_thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_EXACT", 512)
    rng = random.Random(2)
    values = [rng.lognormvariate(-3, 1.5) for _ in range(20_000)] + [0.0] * 100
    rng.shuffle(values)
    bounded = Samples()
    bounded.extend(values)
    found, exact = bounded.distribution(), distribution(values)
    assert found is not None
    assert exact is not None
    assert len(bounded._entries) < 512
    assert len(bounded._buckets) < 12_000
    assert (found.count, found.longest) == (exact.count, exact.longest)
    assert found.mean == pytest.approx(exact.mean, rel=1e-9)
    for name in ("p50", "p90", "p99"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=1e-3)


def test_a_cumulative_plot_ends_with_all_of_the_samples() -> None:
    found = Samples()
    found.extend([3.0, 1.0, 2.0, 2.0])
    assert found.cumulative() == [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)] or found.cumulative() == [
        (1.0, 0.25),
        (2.0, 0.75),
        (3.0, 1.0),
    ]
    assert Samples().cumulative() == []
    many = Samples()
    many.extend(float(number) for number in range(5000))
    points = many.cumulative(points=100)
    assert len(points) <= 102
    assert points[-1] == (4999.0, 1.0)
