"""Densities and what follows from them, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import UsageError
from plait.cost.density import (
    DensityModel,
    Job,
    Lengths,
    concurrent_requests,
    job_of,
    partition,
    prefill_budget,
    step_s,
    two_phase_speedup,
)

LLAMA_8B = DensityModel(8.03e9, kv_width=1024, num_layers=32, flops_per_s=312e12, bytes_per_s=2.039e12)
# One token computes in 2 s; one cached token is read in 1 s.
PLAIN = DensityModel(1.0, kv_width=1, num_layers=1, flops_per_s=1.0, bytes_per_s=4.0)
densities = st.floats(0.01, 100.0)


def test_a_request_computes_each_token_once_and_reads_what_stands_before_each_output() -> None:
    one = Lengths(prompt=10, output=4)
    assert PLAIN.compute_s(one) == 28
    assert PLAIN.memory_s(one) == 10 * 4 + 4 * 4 / 2
    assert PLAIN.density(one) == pytest.approx(28 / 48)


def test_a_hit_saves_computing_and_no_reading() -> None:
    assert PLAIN.density(Lengths(10, 4, shared=6)) == pytest.approx((28 - 12) / 48)


def test_outputs_that_spread_are_read_more() -> None:
    halves = Lengths(10, 4, output_squared=(1**2 + 7**2) / 2)
    apart = (PLAIN.memory_s(Lengths(10, 1)) + PLAIN.memory_s(Lengths(10, 7))) / 2
    assert PLAIN.memory_s(halves) == pytest.approx(apart)


@pytest.mark.parametrize(
    ("prompt", "output", "density"), [(496, 510, 2.1032), (2508, 23, 34.974), (109, 7617, 0.20733)]
)
def test_densities_of_llama_8b_on_an_a100(prompt: float, output: float, density: float) -> None:
    assert LLAMA_8B.density(Lengths(prompt, output)) == pytest.approx(density, rel=1e-4)


def test_a_token_of_llama_8b_is_128_kib() -> None:
    assert LLAMA_8B.token_bytes == 131072


@given(densities)
def test_the_mean_square_of_outputs_gives_the_density_that_was_asked_for(density: float) -> None:
    squared = LLAMA_8B.output_squared_of(244, 27, density)
    assert LLAMA_8B.density(Lengths(244, 27, squared)) == pytest.approx(density)


def test_a_job_adds_its_parts_and_takes_as_long_as_the_busier_resource() -> None:
    job = Job(PLAIN, ((3, Lengths(10, 4, shared=6)), (1, Lengths(0, 8))))
    assert job.tokens == 50
    assert job.compute_s == 100
    assert job.memory_s == 3 * 48 + 32
    assert job.sharing == pytest.approx(18 / 50)
    assert job.density == pytest.approx(64 / 176)
    assert job.optimum_s == 176


@pytest.mark.parametrize(("density", "sharing"), [(1.4, 0.35), (0.9, 0.35), (1.4, 0.05), (0.9, 0.05)])
def test_a_mixture_has_the_density_and_the_sharing_that_were_asked_for(density: float, sharing: float) -> None:
    burst = Lengths(244, 27, LLAMA_8B.output_squared_of(244, 27, 17.78))
    video = Lengths(121, 16384, LLAMA_8B.output_squared_of(121, 16384, 0.05))
    job = job_of(LLAMA_8B, (burst, video, Lengths(804, 2, shared=695)), 1000, density, sharing)
    assert sum(count for count, _ in job.parts) == pytest.approx(1000)
    assert (job.density, job.sharing) == (pytest.approx(density), pytest.approx(sharing))


@pytest.mark.parametrize(("density", "sharing"), [(1e6, 0.35), (1.4, 0.99)])
def test_a_mixture_that_does_not_exist_is_an_error(density: float, sharing: float) -> None:
    classes = (Lengths(244, 27), Lengths(121, 16384), Lengths(804, 2, shared=695))
    with pytest.raises(UsageError, match="no mixture"):
        job_of(LLAMA_8B, classes, 1000, density, sharing)


def test_equal_classes_do_not_decide_a_mixture() -> None:
    same = Lengths(244, 27)
    with pytest.raises(UsageError, match="no mixture"):
        job_of(LLAMA_8B, (same, same, same), 1000, 1.0, 0.0)


def test_memory_is_split_as_in_the_papers_example() -> None:
    left, right = partition(3.73, 0.096, 1.27, 60.0)
    assert (left, right) == (pytest.approx(19.384, abs=1e-3), pytest.approx(40.616, abs=1e-3))


@given(densities, densities, densities)
def test_a_split_uses_all_memory_and_has_the_jobs_density_where_it_can(left: float, right: float, root: float) -> None:
    of_left, of_right = partition(left, right, root, 8.0)
    assert of_left + of_right == pytest.approx(8.0)
    assert 0.0 <= of_left <= 8.0
    if left > root > right:
        assert of_left * left + of_right * right == pytest.approx(8.0 * root)


@pytest.mark.parametrize(
    ("left", "right", "root", "split"),
    [
        (1.0, 0.5, 1.2, (8.0, 0.0)),  # nothing is heavy enough: the left side is nearer
        (2.0, 1.5, 1.2, (0.0, 8.0)),  # everything is too heavy: the right side is nearer
        (1.2, 1.2, 1.2, (8.0, 0.0)),  # both alike
    ],
)
def test_memory_goes_to_the_side_that_is_nearer_where_no_mix_exists(
    left: float, right: float, root: float, split: tuple[float, float]
) -> None:
    assert partition(left, right, root, 8.0) == split


@pytest.mark.parametrize(
    ("root", "interference", "speedup"),
    [(0.9, 0.0, 1.804), (1.4, 0.0, 1.627), (0.9, 0.35, 1.398), (1.4, 0.25, 1.399), (0.9, 1.0, 1.0)],
)
def test_two_phases_take_longer_the_better_work_overlaps(root: float, interference: float, speedup: float) -> None:
    assert two_phase_speedup(17.78, 0.05, root, interference) == pytest.approx(speedup, abs=5e-4)


def test_densities_of_two_phases_must_lie_on_both_sides_of_the_job() -> None:
    with pytest.raises(UsageError, match="must lie between"):
        two_phase_speedup(0.8, 0.05, 0.9)


def test_work_that_overlaps_takes_the_longer_part_and_some_of_the_shorter() -> None:
    assert step_s(3.0, 2.0) == 3.0
    assert step_s(2.0, 3.0, 0.3) == pytest.approx(3.6)


def test_memory_decides_how_many_decode_and_they_how_much_is_prefilled() -> None:
    assert concurrent_requests(60e9, 1000, 200, 131072) == pytest.approx(60e9 / (1100 * 131072))
    assert prefill_budget(100, 1000, 200) == 500
