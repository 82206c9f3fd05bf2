"""The estimator's case: what is planted comes back, and a machine's own figures come from its file."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from plait.cost.alpha import constant_alpha
from plait.cost.calibration import Calibration, HeldOut
from plait.cost.hardware import find_hardware, write_hardware
from plait.cost.solo import decode_shape, fit_solo, prefill_shape
from plait.reproduce.cases.estimator import (
    ALL_SPLITS,
    PHI,
    PROMPTS,
    THETA,
    TWO_SHARES,
    Budget,
    machine_answers,
    planted,
    regression_answers,
    unseen_decode,
)
from plait.reproduce.figure import Measured, NotRun, Sampled
from plait.reproduce.models import BF16, llama_8b
from plait.reproduce.smooth_device import SmoothDevice

A100 = find_hardware("a100-80g")
DEVICE = SmoothDevice(llama_8b(), BF16, A100, seed=3)
DECODE, PREFILL = decode_shape(32, 4096), prefill_shape(4096)


def test_planted_coefficients_come_back_without_noise() -> None:
    found = fit_solo(planted(random.Random(0), 0.0))
    assert found.prefill[108] == pytest.approx(THETA, rel=1e-6)
    assert found.decode[108] == pytest.approx(PHI, rel=1e-6)


def test_noise_of_three_percent_makes_the_fit_miss_by_some_and_less_than_nine() -> None:
    answers = regression_answers()
    for name in ("prefill, 3 % noise", "decode, 3 % noise"):
        answer = answers[name]
        assert isinstance(answer, Sampled)
        assert 3.0 < answer.mean < 9.0


@pytest.mark.parametrize("budget", [ALL_SPLITS, TWO_SHARES])
def test_budgets_are_bullets(budget: Budget) -> None:
    assert len(budget.shares) * len(budget.batches) * len(budget.contexts) * len(PROMPTS) <= 308


def test_held_out_states_are_none_of_the_profile() -> None:
    kept = unseen_decode(DEVICE, random.Random(1), 16384, 128)
    states = {(one.share, len(one.shape.chunks), one.shape.chunks[0].start) for one in kept}
    profile = {(s, b, c) for s in ALL_SPLITS.shares for b in ALL_SPLITS.batches for c in ALL_SPLITS.contexts}
    assert len(states) > 70
    assert not states & profile


def test_a_machine_that_was_calibrated_gives_its_own_figures(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    errors = HeldOut(100, 0.04, 0.08, 0.20, 0.10, 10, 0.0, 1.2, 8, 0.05, 0.25, 0.125, 1.3)
    measured = Calibration("m", "two cores, today", "real-cpu", 10, constant_alpha(), 0.0, 0.0, held_out=errors)
    write_hardware(replace(A100, calibration=measured), path, "a machine")
    blind, linear = machine_answers(find_hardware(str(path))).values()
    assert isinstance(blind, Measured)
    assert isinstance(linear, Measured)
    assert (blind.value, linear.value) == (pytest.approx(0.2), pytest.approx(0.4))
    assert blind.where == "two cores, today; 8 steps, which took 1.30 of their time alone"
    # A file that has no errors of steps beside others says nothing about them.
    before = replace(measured, held_out=HeldOut(100, 0.04, 0.08, 0.20, 0.10, 10, 0.0, 1.2))
    write_hardware(replace(A100, calibration=before), path, "a machine")
    assert all(isinstance(answer, NotRun) for answer in machine_answers(find_hardware(str(path))).values())


@pytest.mark.parametrize("evidence", ["simulated", "published"])
def test_what_no_processor_ran_is_no_figure_of_this_machine(evidence: str) -> None:
    errors = HeldOut(100, 0.04, 0.08, 0.20, 0.10, 10, 0.0, 1.2)
    other = Calibration("m", "a synthetic device", evidence, 10, constant_alpha(), 0.0, 0.0, held_out=errors)
    for spec in (None, A100, replace(A100, calibration=other)):
        assert all(isinstance(answer, NotRun) for answer in machine_answers(spec).values())


# The device whose law is another:


def test_more_share_never_takes_longer() -> None:
    for shape in (decode_shape(1, 128), DECODE):
        seconds = [DEVICE.mean_s(shape, share) for share in range(4, 109, 8)]
        assert seconds == sorted(seconds, reverse=True)


def test_decode_is_bound_by_memory_and_prefill_by_compute() -> None:
    assert DEVICE.mean_s(DECODE, 54) < 1.15 * DEVICE.mean_s(DECODE, 108)
    assert DEVICE.mean_s(PREFILL, 54) > 1.7 * DEVICE.mean_s(PREFILL, 108)


def test_bandwidth_rises_without_a_knee_and_falls_beside_prompts() -> None:
    rates = DEVICE.bandwidth((10, 20, 30, 54, 108), (1024, 16384)).values
    assert list(rates[::2]) == sorted(rates[::2])
    assert max(rates) < 0.85 * A100.bytes_per_s


def test_a_neighbour_slows_decode_by_what_it_reads() -> None:
    slowdown = DEVICE.mean_s(DECODE, 44, PREFILL) / DEVICE.mean_s(DECODE, 44)
    assert 1.02 < slowdown < 1.3


def test_repeated_measurements_are_nearer_to_the_truth_and_equal_for_equal_seeds() -> None:
    once, often = (DEVICE.sample(DECODE, 44, PREFILL, repeats) for repeats in (1, 1000))
    assert often.seconds == pytest.approx(DEVICE.mean_s(DECODE, 44, PREFILL), rel=0.005)
    assert once == DEVICE.sample(DECODE, 44, PREFILL, 1)
    assert once.beside == (PREFILL,)
