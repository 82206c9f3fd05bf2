"""Estimators on a device that is not there: the published budgets of samples, and what each way makes of them."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean, quantiles

import pytest
from tests.unit.cost.invented import ABOUT, BF16, LLAMA_8B

from plait.cost.calibrated import CalibratedModel
from plait.cost.estimators import LinearModel, device_s, errors, fit_linear, held_out
from plait.cost.fit import fit_alpha, fit_guard, fit_spread
from plait.cost.guard import GuardTable, guard_from, pair_of
from plait.cost.hardware import find_hardware
from plait.cost.partitions import splits
from plait.cost.roofline import RooflineModel
from plait.cost.solo import Sample, decode_shape, fit_solo, prefill_shape
from plait.cost.synthetic import SyntheticDevice

A100 = find_hardware("a100-80g")
SHARES = tuple(split.decode for split in splits(108))
PROFILED = (28, 76)
"""Two shares are enough (Bullet, figure 9)."""
BESIDE = (1024, 16384)


def powers(first: int, last: int) -> list[int]:
    return [2**power for power in range(first, last + 1)]


@pytest.fixture(scope="module")
def device() -> SyntheticDevice:
    return SyntheticDevice(LLAMA_8B, BF16, A100, seed=7)


@pytest.fixture(scope="module")
def roofline(device: SyntheticDevice) -> RooflineModel:
    return RooflineModel(LLAMA_8B, BF16, A100, bandwidth=device.bandwidth(SHARES, (1024, 4096, 16384)))


@pytest.fixture(scope="module")
def profile(device: SyntheticDevice) -> list[Sample]:
    """308 decode samples up to 16k of context and 128 rows, 18 of prefill up to 16k, as Bullet's smaller budget."""
    decode = [
        device.sample(decode_shape(rows, context), share, prefill_shape(tokens))
        for share in PROFILED
        for rows in powers(1, 7)
        for context in powers(4, 14)
        for tokens in BESIDE
    ]
    prefill = [device.sample(prefill_shape(tokens), share) for share in (54, 108) for tokens in powers(6, 14)]
    assert (len(decode), len(prefill)) == (308, 18)
    return decode + prefill


@pytest.fixture(scope="module")
def model(profile: list[Sample], roofline: RooflineModel) -> CalibratedModel:
    return CalibratedModel(roofline, replace(ABOUT, alpha=fit_alpha(profile, roofline)))


def strangers(device: SyntheticDevice, most_context: int, count: int, seed: int) -> list[Sample]:
    """States of decode beside a prefill that no profile has, on every split."""
    rng = random.Random(seed)
    return [
        device.sample(
            decode_shape(rng.randint(2, 128), rng.randint(most_context // 2, most_context) if rng.random() < 0.5
                         else rng.randint(64, most_context)),
            rng.choice(SHARES),
            prefill_shape(rng.randint(1024, 16384)),
        )
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("most_context", [16384, 32768])
def test_alpha_is_off_by_less_than_half_of_what_simpler_ways_are(
    device: SyntheticDevice, profile: list[Sample], model: CalibratedModel, most_context: int
) -> None:
    """Inside the profile, and at twice its longest context. The blind one has as many samples, of solo runs."""
    blind_roofline = RooflineModel(LLAMA_8B, BF16, A100)
    solo_runs = [
        device.sample(decode_shape(rows, context), share)
        for share in PROFILED
        for rows in powers(1, 7)
        for context in powers(4, 14)
    ]
    blind = CalibratedModel(blind_roofline, replace(ABOUT, alpha=fit_alpha(solo_runs + profile[308:], blind_roofline)))
    linear = fit_linear(profile[:308])
    held = strangers(device, most_context, 80, seed=most_context)
    of_alpha = fmean(errors([device_s(model, one) for one in held], held))
    of_blind = fmean(errors([blind.price(one.shape, one.share).expected_s for one in held], held))
    of_linear = fmean(errors([linear.seconds(one) for one in held], held))
    assert of_alpha < 0.05
    assert of_alpha < of_blind / 2
    assert of_alpha < of_linear / 2


def test_two_shares_are_enough_for_the_whole_curve(device: SyntheticDevice, model: CalibratedModel) -> None:
    held = [device.sample(decode_shape(32, 4096), share, prefill_shape(4096)) for share in range(12, 96, 8)]
    off = errors([device_s(model, one) for one in held], held)
    assert fmean(off) < 0.03
    assert max(off) < 0.12


def test_prefill_of_lengths_between_samples_is_foretold(device: SyntheticDevice, model: CalibratedModel) -> None:
    held = [
        device.sample(prefill_shape(tokens), share) for tokens in (300, 1500, 6000, 12000) for share in (54, 80, 108)
    ]
    assert fmean(errors([device_s(model, one) for one in held], held)) < 0.06


def test_the_device_is_as_noisy_and_as_far_from_its_roof_as_published(
    device: SyntheticDevice, model: CalibratedModel
) -> None:
    """95 % of single runs within 6.8 % of their mean; alpha 1.61 on average."""
    shape = decode_shape(8, 1000)
    mean_s = device.mean_s(shape, 60)
    singles = [
        SyntheticDevice(LLAMA_8B, BF16, A100, seed).sample(shape, 60, repeats=1).seconds / mean_s - 1
        for seed in range(400)
    ]
    cuts = quantiles(singles, n=40)
    assert cuts[0] == pytest.approx(-0.068, abs=0.015)
    assert cuts[-1] == pytest.approx(0.068, abs=0.015)
    assert fmean(model.calibration.alpha.decode.values) == pytest.approx(1.61, rel=0.1)


def test_neighbours_slow_decode_by_up_to_a_fifth_and_prefill_hardly(device: SyntheticDevice) -> None:
    slowdowns = [
        device.mean_s(decode_shape(rows, context), share, prefill_shape(tokens))
        / device.mean_s(decode_shape(rows, context), share)
        for rows, context in ((4, 16000), (32, 2048), (128, 1024))
        for share in SHARES
        for tokens in (1024, 8192)
    ]
    assert 1.0 <= min(slowdowns) < 1.04
    assert 1.1 < max(slowdowns) <= 1.2
    prefill = device.mean_s(prefill_shape(4096), 80, decode_shape(64, 2048)) / device.mean_s(prefill_shape(4096), 80)
    assert 1.0 <= prefill < 1.08


def test_a_guard_bounds_what_was_not_seen_without_being_loose(
    device: SyntheticDevice, profile: list[Sample], model: CalibratedModel
) -> None:
    """Violations of at most 1 %, and a bound of at most 1.4 of what is usual."""
    edges = GuardTable(SHARES, (1024, 2048, 4096, 8192, 16384), (0,), (2, 8, 32, 128), (64, 512, 4096, 16384), {})
    trials = [
        device.sample(decode_shape(rows, context), share, prefill_shape(tokens), repeats=1)
        for share in SHARES
        for tokens in (1024, 2048, 4096, 8192, 16384)
        for rows in (2, 8, 32, 128)
        for context in (64, 512, 4096, 16384)
    ]
    alone = [
        device.sample(decode_shape(rows, context), share)
        for share in PROFILED
        for rows in powers(1, 7)
        for context in powers(4, 14)
    ]
    alpha = fit_alpha(profile + alone, RooflineModel(LLAMA_8B, BF16, A100))
    solo = CalibratedModel(RooflineModel(LLAMA_8B, BF16, A100), replace(ABOUT, alpha=alpha))
    guard = fit_guard(trials, solo, edges)
    spread = fit_spread([device.sample(one.shape, one.share, repeats=1) for one in alone], solo)
    guarded = CalibratedModel(
        RooflineModel(LLAMA_8B, BF16, A100), replace(solo.calibration, guard=guard, spread=spread)
    )
    held = strangers(device, 16384, 150, seed=5)
    found = held_out(profile, held, guarded, fit_solo(alone))
    assert found.num_bounded == 150
    assert found.violations <= 0.01
    assert 1.0 < found.tightness <= 1.4
    assert found.alpha_mean <= found.alpha_p90
    # All are decode beside a prompt, so what knows no neighbours misses what they cost.
    assert found.num_beside == found.num_steps == 150
    assert found.beside_alpha == found.alpha_mean
    assert found.beside_linear == found.linear_mean
    assert found.slowdown > 1.0
    assert found.beside_blind > found.beside_alpha


def test_a_linear_regression_is_what_its_name_says() -> None:
    """Seconds that are linear in the state come back exactly."""
    truth = LinearModel((0.01, -1e-4, 3e-5, 2e-9, 1e-7, 1e-4, 5e-8, 2e-6, 3e-6))
    rng = random.Random(2)
    samples = []
    for _ in range(60):
        shape = rng.choice((decode_shape(rng.randint(1, 64), rng.randint(0, 9000)), prefill_shape(rng.randint(2, 900))))
        beside = rng.choice(((), (prefill_shape(rng.randint(2, 900)),), (decode_shape(rng.randint(1, 9), 5),)))
        samples.append(Sample(shape, rng.randint(1, 50), 1.0, beside))
    exact = [replace(one, seconds=truth.seconds(one)) for one in samples]
    found = fit_linear(exact)
    assert [found.seconds(one) for one in exact] == pytest.approx([one.seconds for one in exact], rel=1e-5, abs=1e-7)


def alone_of(model: CalibratedModel, sample: Sample) -> float:
    return model.price(sample.shape, sample.share).expected_s - model.overhead_s(sample.shape)


def test_cells_keep_the_largest_and_what_lies_beyond_falls_into_the_last() -> None:
    shape, share = decode_shape(20, 3000), 44
    pairs = [(pair_of(shape, share, prefill_shape(tokens)), seen) for tokens, seen in ((900, 1.05), (700, 1.11))]
    pairs.append((pair_of(shape, share, prefill_shape(9000)), 0.97))
    guard = guard_from(pairs, SHARES)
    assert guard.slowdown(pair_of(shape, share, prefill_shape(5))) == 1.11
    assert guard.slowdown(pair_of(shape, share, prefill_shape(9000))) == 1.0
    assert guard.slowdown(pair_of(decode_shape(999, 999_999), 92, prefill_shape(50))) == guard.largest == 1.11


def test_one_disturbed_step_moves_a_bound_by_a_twentieth_and_is_forgotten() -> None:
    pair = pair_of(decode_shape(20, 3000), 44, prefill_shape(800))
    guard = guard_from([(pair, 1.2)], SHARES)
    raised = guard.observed(pair, 9.0)
    assert raised.slowdown(pair) == pytest.approx(1.2 * (1 + 0.05 * 0.99))
    for _ in range(100):
        raised = raised.observed(pair, 1.1)
    assert raised.slowdown(pair) < 1.2 * 1.001
    # Of a cell that nothing was seen at, it is all that there is.
    assert guard.observed(pair_of(decode_shape(1, 0), 12, prefill_shape(800)), 1.4).largest == 1.4


@pytest.mark.parametrize("spread", [None, 1.1])
def test_in_the_long_run_one_in_a_hundred_steps_is_longer_than_observed_bounds(spread: float | None) -> None:
    pair, rng = pair_of(decode_shape(20, 3000), 44, prefill_shape(800)), random.Random(3)
    guard = replace(guard_from([(pair, 1.1)], SHARES), spread=spread)
    num_over = 0
    for place in range(12_000):
        seen = 1.05 * rng.lognormvariate(0.0, 0.05)
        num_over += place >= 2000 and seen > guard.slowdown(pair)
        guard = guard.observed(pair, seen)
    assert 0.005 <= num_over / 10_000 <= 0.02


def test_a_guard_of_many_samples_is_what_is_usual_and_how_far_nearly_all_stay_from_it() -> None:
    """One sample in fifty took twice as long: maxima would be that in most cells."""
    model = CalibratedModel(RooflineModel(LLAMA_8B, BF16, A100), ABOUT)
    edges = GuardTable((44,), (1024, 4096), (0,), (8, 32), (512,), {})
    rng, samples = random.Random(4), []
    for rows, tokens in ((8, 1024), (8, 4096), (32, 1024), (32, 4096)):
        shape = decode_shape(rows, 512)
        for _ in range(200):
            seen = 1.1 * rng.gauss(1.0, 0.02) * (2.0 if rng.random() < 0.01 else 1.0)
            samples.append(Sample(shape, 44, seen * alone_of(model, Sample(shape, 44, 0.0)), (prefill_shape(tokens),)))
    guard = fit_guard(samples, model, edges)
    assert guard.spread is not None
    assert guard.spread < 1.1
    assert [guard.slowdown(pair_of(decode_shape(20, 512), 44, prefill_shape(2048)))] == [pytest.approx(1.16, abs=0.05)]
    # Too few to know what is usual: the maximum.
    few = fit_guard(samples[:5], model, edges)
    assert few.spread is None
    assert few.largest == pytest.approx(max(s.seconds for s in samples[:5]) / alone_of(model, samples[0]))
