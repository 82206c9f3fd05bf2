"""Rope tables: frequencies against those of `transformers`, and the limits of each scaling.

The golden numbers are inverse frequencies of `transformers` 5.24.0 (`ROPE_INIT_FUNCTIONS`), which computes them in
float32: hence the tolerance.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.model.rope import FactorScaling, LinearScaling, Llama3Scaling, RopeSpec, frequencies

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

thetas = st.floats(100.0, 1e7)
dims = st.integers(1, 64).map(lambda half: 2 * half)


@pytest.mark.parametrize(
    ("spec", "golden"),
    [
        (RopeSpec(500_000.0, 128, 131_072, LLAMA_31), LLAMA_31_8B),
        (RopeSpec(100_000.0, 64, 8192, LinearScaling(4.0)), SMOLLM2_LINEAR_4),
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
