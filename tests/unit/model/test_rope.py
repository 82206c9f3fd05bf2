"""Rope tables: frequencies against those of `transformers`, and the limits of each scaling.

The golden numbers are inverse frequencies of `transformers` 5.24.0 (`ROPE_INIT_FUNCTIONS`), which computes them in
float32: hence the tolerance.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.model.rope import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeSpec,
    YarnScaling,
    frequencies,
)

LLAMA_31 = Llama3Scaling(factor=8.0, low_factor=1.0, high_factor=4.0, original_positions=8192)

LLAMA_31_8B = {
    0: 1.0,
    1: 0.8146172165870667,
    28: 0.0032114461064338684,
    29: 0.0021665706299245358,
    30: 0.0013718936825171113,
    31: 0.0008567514596506953,
    32: 0.0005248460220173001,
    33: 0.0003126936499029398,
    34: 0.0001785077911335975,
    35: 9.556212171446532e-05,
    36: 7.784655463183299e-05,
    40: 3.428102354519069e-05,
    50: 4.411534519022098e-06,
    63: 3.068925877869333e-07,
}
SMOLLM2_LINEAR_4 = {0: 0.25, 1: 0.1744576394557953, 15: 0.0011328959371894598, 31: 3.582531689971802e-06}
QWEN2_YARN_4 = {
    0: 1.0,
    20: 0.01333521492779255,
    23: 0.006978305988013744,
    24: 0.005375321488827467,
    28: 0.0018482765881344676,
    36: 0.0001798411540221423,
    39: 6.490394298452884e-05,
    40: 4.4456985051510856e-05,
    63: 3.102344408034696e-07,
}
QWEN2_YARN_4_EXACT = {
    23: 0.006978305988013744,
    24: 0.005517270416021347,
    36: 0.0001773442345438525,
    39: 6.187807593960315e-05,
    40: 4.4456985051510856e-05,
}

thetas = st.floats(100.0, 1e7)
dims = st.integers(1, 64).map(lambda half: 2 * half)


@pytest.mark.parametrize(
    ("spec", "golden"),
    [
        (RopeSpec(500_000.0, 128, 131_072, LLAMA_31), LLAMA_31_8B),
        (RopeSpec(100_000.0, 64, 8192, LinearScaling(4.0)), SMOLLM2_LINEAR_4),
        (RopeSpec(1e6, 128, 131_072, YarnScaling(4.0, 32_768, 1.14)), QWEN2_YARN_4),
        (RopeSpec(1e6, 128, 131_072, YarnScaling(4.0, 32_768, 1.14, whole=False)), QWEN2_YARN_4_EXACT),
    ],
)
def test_scaled_frequencies_equal_those_of_transformers(spec: RopeSpec, golden: dict[int, float]) -> None:
    table = frequencies(spec)
    assert len(table) == spec.rotary_dim // 2
    for pair, expected in golden.items():
        assert table[pair] == pytest.approx(expected, rel=1e-6)


def test_plain_frequencies_fall_from_one_by_a_constant_ratio() -> None:
    assert frequencies(RopeSpec(10_000.0, 4, 64)) == (1.0, 0.01)
    assert frequencies(RopeSpec(16.0, 8, 64)) == pytest.approx((1.0, 0.5, 0.25, 0.125), rel=1e-15)


@given(theta=thetas, dim=dims)
def test_linear_scaling_divides_every_frequency(theta: float, dim: int) -> None:
    plain = frequencies(RopeSpec(theta, dim, 64))
    assert frequencies(RopeSpec(theta, dim, 64, LinearScaling(2.0))) == tuple(f / 2.0 for f in plain)


@given(theta=thetas, dim=dims)
def test_listed_factors_of_one_change_nothing(theta: float, dim: int) -> None:
    plain = RopeSpec(theta, dim, 64)
    assert frequencies(RopeSpec(theta, dim, 64, FactorScaling((1.0,) * (dim // 2)))) == frequencies(plain)


def test_each_listed_factor_divides_its_own_frequency() -> None:
    assert frequencies(RopeSpec(10_000.0, 4, 64, FactorScaling((2.0, 4.0)))) == (0.5, 0.0025)


@given(theta=thetas, dim=dims)
def test_llama3_scaling_keeps_fast_frequencies_and_divides_slow_ones(theta: float, dim: int) -> None:
    plain = frequencies(RopeSpec(theta, dim, 131_072))
    scaled = frequencies(RopeSpec(theta, dim, 131_072, LLAMA_31))
    for before, after in zip(plain, scaled, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4:
            assert after == before
        elif wavelength > 8192:
            assert after == before / 8
        else:
            assert before / 8 <= after <= before
    assert list(scaled) == sorted(scaled, reverse=True)


def test_a_factor_for_every_frequency_or_none() -> None:
    with pytest.raises(ValueError, match="argument"):
        frequencies(RopeSpec(10_000.0, 8, 64, FactorScaling((1.0, 1.0))))


def test_long_divisors_are_those_of_the_tables_length() -> None:
    scaling = LongScaling((1.0, 2.0), (4.0, 8.0), 100, 1.2)
    short, long = RopeSpec(10_000.0, 4, 100, scaling), RopeSpec(10_000.0, 4, 101, scaling)
    assert frequencies(short) == frequencies(RopeSpec(10_000.0, 4, 100, FactorScaling((1.0, 2.0))))
    assert frequencies(long) == frequencies(RopeSpec(10_000.0, 4, 101, FactorScaling((4.0, 8.0))))
    assert (short.is_long, long.is_long) == (False, True)


def test_only_yarn_and_long_scaling_change_magnitudes() -> None:
    assert RopeSpec(1e4, 4, 64).magnitude == RopeSpec(1e4, 4, 64, LinearScaling(2.0)).magnitude == 1.0
    assert RopeSpec(1e4, 4, 64, YarnScaling(2.0, 32, 1.07)).magnitude == 1.07


def test_a_range_of_no_pairs_between_fast_and_slow_is_a_step() -> None:
    """Where both ends lie on one pair, that pair is fast and the next one slow."""
    spec = RopeSpec(10_000.0, 8, 64, YarnScaling(2.0, 64, 1.0, beta_fast=1e-5, beta_slow=1e-5, whole=False))
    plain = frequencies(RopeSpec(10_000.0, 8, 64))
    table = frequencies(spec)
    assert all(math.isfinite(f) and f > 0 for f in table)
    assert {round(f / g, 6) for f, g in zip(table, plain, strict=True)} <= {0.5, 1.0}


def test_lists_of_divisors_have_one_for_each_pair() -> None:
    assert RopeSpec(1e4, 4, 64, FactorScaling((1.0,))).fault() == "1 rope factors for 2 frequencies"
    assert RopeSpec(1e4, 4, 64, LongScaling((1.0, 1.0), (1.0,), 8, 1.0)).fault() == "1 rope factors for 2 frequencies"
    assert RopeSpec(1e4, 4, 64, LongScaling((1.0, 1.0), (1.0, 1.0), 8, 1.0)).fault() is None
