"""The synthetic device: a law with the shapes of a real one, and noise of the size that was asked for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from plait.core.errors import UsageError
from plait.cost.hardware import find_hardware
from plait.cost.solo import decode_shape, prefill_shape
from plait.cost.synthetic import Law, SyntheticDevice
from plait.reproduce.models import BF16_NEAR_CACHE, llama_8b

A100 = find_hardware("a100-80g")
DEVICE = SyntheticDevice(llama_8b(), BF16_NEAR_CACHE, A100)
DECODE, PREFILL = decode_shape(32, 4096), prefill_shape(4096)


def test_more_share_never_takes_longer() -> None:
    for shape in (decode_shape(1, 128), DECODE):
        seconds = [DEVICE.seconds(shape, share) for share in range(4, 109, 8)]
        assert seconds == sorted(seconds, reverse=True)


def test_decode_is_bound_by_memory_and_prefill_by_compute() -> None:
    assert DEVICE.seconds(DECODE, 54) < 1.15 * DEVICE.seconds(DECODE, 108)
    assert DEVICE.seconds(PREFILL, 54) > 1.8 * DEVICE.seconds(PREFILL, 108)


def test_bandwidth_rises_without_a_knee() -> None:
    rates = [DEVICE.bandwidth(share) for share in (10, 20, 30, 54, 108)]
    assert rates == sorted(rates)
    assert rates[2] == pytest.approx(0.918 * rates[4], rel=0.01)
    assert rates[4] == pytest.approx(0.85 * A100.bytes_per_s, rel=0.001)


def test_a_neighbour_slows_decode_by_what_it_reads() -> None:
    alone, beside = DEVICE.seconds(DECODE, 44), DEVICE.seconds(DECODE, 44, (PREFILL,))
    assert 1.02 * alone < beside < 1.2 * alone
    without = SyntheticDevice(llama_8b(), BF16_NEAR_CACHE, A100, Law(contention=0.0))
    assert without.seconds(DECODE, 44, (PREFILL,)) == without.seconds(DECODE, 44)


def test_noise_has_the_size_that_was_asked_for() -> None:
    rng, true_s = random.Random(1), DEVICE.seconds(DECODE, 44)
    off = [abs(DEVICE.measured(DECODE, 44, rng).seconds / true_s - 1) for _ in range(1000)]
    assert sum(part <= Law().noise_95 for part in off) / len(off) == pytest.approx(0.95, abs=0.02)


def test_repeated_measurements_are_nearer_to_the_truth() -> None:
    rng, true_s = random.Random(1), DEVICE.seconds(DECODE, 44)
    off = [abs(DEVICE.measured(DECODE, 44, rng, times=30).seconds / true_s - 1) for _ in range(50)]
    assert max(off) < Law().noise_95 / 2


def test_equal_seeds_measure_equal_times() -> None:
    first, again = (DEVICE.measured(DECODE, 44, random.Random(3), (PREFILL,)) for _ in range(2))
    assert first == again
    assert first.beside == (PREFILL,)


def test_a_device_without_tiles_is_an_error() -> None:
    with pytest.raises(UsageError, match="names no tiles"):
        SyntheticDevice(llama_8b(), BF16_NEAR_CACHE, replace(A100, tiles=None))
