"""Figures of a profile: what a step's overhead is held against, and that both forms say the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.metrics.profile_figures import Figures, Overhead, StepCost, Units

FIGURES = Figures(
    executor="native",
    num_workers=2,
    num_steps=4,
    num_rows=40,
    num_sequences=8,
    elapsed_s=3.0,
    idle_s=1.0,
    rows={"gemm q,k,v": 1.5, "Python, no step running": 0.5},
    phases={"plan": (0.25, 0.125)},
    units=Units(1234, 2, 0.0051, 0.0031, 0),
    overhead=Overhead.of([StepCost(0.0004, 2)] * 4),
    trace="t.json",
    num_slices=5000,
    trace_ends_s=None,
)


@pytest.mark.parametrize(
    ("outside_s", "num_sequences", "within"),
    [(0.0003, 0, True), (0.000316, 1, False), (0.000314, 1, True), (0.00126, 64, True), (0.00127, 64, False)],
)
def test_a_step_may_cost_a_bit_and_a_bit_for_every_sequence(outside_s: float, num_sequences: int, within: bool) -> None:
    assert StepCost(outside_s, num_sequences).is_within is within


def test_overhead_of_several_steps() -> None:
    overhead = Overhead.of([StepCost(n * 1e-4, 2) for n in range(10)])
    assert overhead is not None
    assert overhead.median_s == pytest.approx(4.5e-4)
    assert overhead.mean_s == pytest.approx(4.5e-4)
    assert overhead.p90_s == pytest.approx(9e-4)
    assert overhead.per_sequence_s == pytest.approx(2.25e-4)
    assert overhead.within_fraction == 0.4
    assert Overhead.of([]) is None


def test_shares_are_of_the_time_that_was_not_idle() -> None:
    assert FIGURES.json_object()["time"] == {
        "gemm q,k,v": {"seconds": 1.5, "fraction": 0.75},
        "Python, no step running": {"seconds": 0.5, "fraction": 0.25},
    }
    row = next(line for line in FIGURES.lines() if "gemm q,k,v" in line)
    assert row.split()[2:] == ["1.500", "75.0%", "375000.0"]


def test_nothing_is_divided_by_a_run_without_steps() -> None:
    empty = replace(FIGURES, num_steps=0, elapsed_s=1.0, rows={"in steps": 0.0}, units=None, overhead=None)
    assert empty.json_object()["units"] is None
    assert empty.json_object()["overhead"] is None
    assert "units     this executor does not tell what its operations took" in empty.lines()


def test_lost_intervals_and_a_full_trace_are_said() -> None:
    assert not any("LOST" in line or "full" in line for line in FIGURES.lines())
    short = replace(FIGURES, units=Units(10, 0, 0.0, 0.0, 7), trace_ends_s=12.25)
    assert any("LOST 7 intervals" in line for line in short.lines())
    assert any("it was full after 12.2 s" in line for line in short.lines())
