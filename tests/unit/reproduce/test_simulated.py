"""Simulated experiments: equal loads for all settings, figures of one load at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.sim import kit

from plait.core.errors import InvariantError
from plait.reproduce.cases import bullet_chunk_size
from plait.reproduce.figure import Sampled
from plait.reproduce.simulated import at_once, compare, mean_of, poisson, run, sample_trace
from plait.sim.arrivals import TraceRow

SPEC = replace(kit.SPEC, cache_bytes=2**22)
LENGTHS = [TraceRow(0.0, 40 + 7 * place, 4) for place in range(12)]


def test_the_slower_of_two_settings_is_slower_by_its_factor_when_nobody_waits() -> None:
    settings = {"one": SPEC, "slow": replace(SPEC, hardware=replace(kit.DEVICE, step_overhead_s=0.0), alpha=2.0)}
    fast = replace(SPEC, hardware=replace(kit.DEVICE, step_overhead_s=0.0))
    found = compare(
        {**settings, "one": fast},
        [poisson(LENGTHS, 0.1, seed) for seed in (0, 1, 2)],
        {"ratio": lambda reports: mean_of(reports["slow"].ttft_s) / mean_of(reports["one"].ttft_s)},
    )
    assert found["ratio"].runs == pytest.approx((2.0, 2.0, 2.0))


def test_equal_seeds_give_equal_loads_and_numbers() -> None:
    assert poisson(LENGTHS, 2.0, 7) == poisson(LENGTHS, 2.0, 7)
    assert poisson(LENGTHS, 2.0, 7) != poisson(LENGTHS, 2.0, 8)
    first, again = (run(SPEC, poisson(LENGTHS, 2.0, 7)) for _ in range(2))
    assert first == again


def test_arrivals_keep_lengths_and_order() -> None:
    rows = poisson(LENGTHS, 2.0, 7)
    assert [(row.num_prompt, row.num_output) for row in rows] == [(row.num_prompt, row.num_output) for row in LENGTHS]
    assert all(one.at_s < after.at_s for one, after in pairwise(rows))
    assert {row.at_s for row in at_once(rows)} == {0.0}


def test_a_run_that_refuses_requests_gives_no_number() -> None:
    with pytest.raises(InvariantError, match=r"12 were refused"):
        run(replace(SPEC, max_model_tokens=16), at_once(LENGTHS))


def test_a_latency_that_no_request_has_gives_no_number() -> None:
    report = run(SPEC, [TraceRow(0.0, 10, 1)])
    assert report.itl_s is None
    with pytest.raises(InvariantError, match="no request"):
        mean_of(report.itl_s)


def test_the_sample_of_azure_code_is_long_in_and_short_out() -> None:
    rows = sample_trace(bullet_chunk_size.SAMPLE)
    assert len(rows) == 400
    assert sum(row.num_prompt for row in rows) / len(rows) == pytest.approx(2137.5, abs=0.1)
    assert sum(row.num_output for row in rows) / len(rows) == pytest.approx(24.55, abs=0.01)


def test_larger_chunks_do_more_and_answer_sooner() -> None:
    """The experiment itself, on a tenth of its requests and with one seed."""
    found = bullet_chunk_size.work_out(sample_trace(bullet_chunk_size.SAMPLE)[:40], [0])
    for name in (bullet_chunk_size.TTFT, bullet_chunk_size.THROUGHPUT):
        answer = found[name]
        assert isinstance(answer, Sampled)
        assert answer.mean > 1.0


def test_each_setting_is_calibrated_on_the_utilisation_of_its_chunks() -> None:
    """Small chunks compute at 66 % of the peak on average, large ones at 71.6 %."""
    small, large = bullet_chunk_size.alpha(1024), bullet_chunk_size.alpha(2048)
    assert small / large == pytest.approx(1.09, abs=0.02)
