"""Regressions: planted coefficients, collinear samples, and a check against every subset of unknowns."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import UsageError
from plait.core.step import ChunkShape, StepShape
from plait.cost.least_squares import least_squares, non_negative_least_squares
from plait.cost.solo import Sample, decode_features, decode_shape, fit_solo, phases, prefill_features, prefill_shape

THETA = (2.1e-9, 3.3e-9, 4.5e-5, 1.2e-3)
"""Seconds for n^2, n r, n and a launch."""
PHI = (6.1e-8, 9.0e-5, 7.4e-3)


def planted(noise: float, seed: int = 1) -> list[Sample]:
    """Prompts and decode steps of an invented machine; contexts and batch sizes are drawn independently, lengths so
    that each order of magnitude is as frequent.
    """
    rng = random.Random(seed)
    samples = []
    for _ in range(60):
        prompts = tuple(
            ChunkShape(rng.choice((0, 512, 4096, 30000)), round(2 ** rng.uniform(4, 13)), 1)
            for _ in range(rng.randint(1, 4))
        )
        rows = tuple(ChunkShape(rng.randint(100, 30000), 1, 1) for _ in range(rng.choice((1, 2, 5, 16, 64, 128))))
        for chunks, features, truth in ((prompts, prefill_features, THETA), (rows, decode_features, PHI)):
            shape = StepShape(chunks)
            seconds = sum(a * b for a, b in zip(truth, features(shape), strict=True))
            samples.append(Sample(shape, 54, seconds * (1 + rng.uniform(-noise, noise))))
    return samples


def test_planted_coefficients_come_back_from_data_without_noise() -> None:
    found = fit_solo(planted(0.0))
    assert found.prefill[54] == pytest.approx(THETA, rel=1e-6)
    assert found.decode[54] == pytest.approx(PHI, rel=1e-6)


def test_with_three_per_cent_of_noise_no_step_is_nine_per_cent_off() -> None:
    """MuxWise reports 8.16 and 8.84 % at most."""
    for seed in range(5):
        found = fit_solo(planted(0.03, seed))
        worst = max(abs(found.seconds(one.shape, 54) / one.seconds - 1) for one in planted(0.03, seed + 100))
        assert worst < 0.09


def test_no_coefficient_is_negative_when_batches_and_contexts_rise_together() -> None:
    """With free signs the batch coefficient of such samples is negative, and long batches are foretold too short."""
    rng = random.Random(3)
    samples = []
    for rows in (1, 2, 4, 8, 16, 32, 64):
        shape = decode_shape(rows, 1000 + rng.randint(-20, 20))
        seconds = sum(a * b for a, b in zip(PHI, decode_features(shape), strict=True))
        samples.append(Sample(shape, 1, seconds * rng.uniform(0.95, 1.05)))
    free = least_squares([decode_features(one.shape) for one in samples], [one.seconds for one in samples])
    assert min(free) < 0.0
    assert min(fit_solo(samples).decode[1]) >= 0.0


def test_each_share_has_coefficients_of_its_own() -> None:
    samples = planted(0.0) + [Sample(one.shape, 108, one.seconds / 2) for one in planted(0.0)]
    found = fit_solo(samples)
    shape = prefill_shape(1000)
    assert found.seconds(shape, 54) == pytest.approx(2 * found.seconds(shape, 108))
    assert found.covers(54)
    assert not found.covers(12)
    with pytest.raises(UsageError, match="nothing was measured on a share of 12"):
        found.seconds(shape, 12)


def test_a_step_of_both_phases_is_launched_once() -> None:
    found = fit_solo(planted(0.0))
    both = StepShape((*prefill_shape(256).chunks, *decode_shape(8, 500).chunks))
    apart = found.seconds(prefill_shape(256), 54) + found.seconds(decode_shape(8, 500), 54)
    assert found.seconds(both, 54) == pytest.approx(apart - min(THETA[-1], PHI[-1]), rel=1e-6)
    assert [part.num_tokens for part in phases(both)] == [256, 8]


def test_steps_that_had_company_are_no_solo_runs() -> None:
    samples = planted(0.0)
    disturbed = [Sample(one.shape, 54, one.seconds * 3, (prefill_shape(64),)) for one in samples]
    assert fit_solo(samples + disturbed) == fit_solo(samples)


numbers = st.floats(-3, 3, allow_nan=False).map(lambda value: round(value, 3))


@given(
    rows=st.lists(st.tuples(numbers, numbers, numbers), min_size=4, max_size=8),
    values=st.lists(numbers, min_size=8, max_size=8),
)
def test_no_subset_of_unknowns_does_better(rows: list[tuple[float, float, float]], values: list[float]) -> None:
    """Every way of holding unknowns at 0 is tried; none that stays positive leaves less."""
    values = values[: len(rows)]

    def left(x: tuple[float, ...]) -> float:
        return sum(
            (sum(a * b for a, b in zip(row, x, strict=True)) - value) ** 2
            for row, value in zip(rows, values, strict=True)
        )

    found = non_negative_least_squares(rows, values)
    assert min(found) >= 0.0
    for size in range(4):
        for chosen in combinations(range(3), size):
            part = least_squares([[row[i] for i in chosen] for row in rows], values) if chosen else ()
            x = tuple(part[chosen.index(i)] if i in chosen else 0.0 for i in range(3))
            if min(x) >= 0.0:
                assert left(found) <= left(x) * (1 + 1e-6) + 1e-6


def test_a_fit_needs_as_many_values_as_rows() -> None:
    with pytest.raises(UsageError, match="there are 1 rows for 2 values"):
        non_negative_least_squares([[1.0]], [1.0, 2.0])
    with pytest.raises(UsageError, match="there are 0 rows"):
        least_squares([], [])
