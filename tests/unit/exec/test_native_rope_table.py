"""Rope tables of the native executor: as exact as a double allows, and what the model's definition says."""

from __future__ import annotations

import numpy as np
import pytest

from plait.exec.native.rope_table import cos_sin, tables
from plait.exec.native.tape import RopeUse
from plait.model.ops import Pairing
from plait.model.rope import LinearScaling, RopeSpec, frequencies

ONE_UNIT = 2.0**-52


@pytest.mark.parametrize("largest", [1.0, 100.0, 8192.0, 1.5e6])
def test_cosines_and_sines_are_right_to_about_the_last_bit_of_a_double(largest: float) -> None:
    angles = np.random.default_rng(5).uniform(0, largest, 20_000)
    cosines, sines = cos_sin(angles)
    assert np.abs(cosines - np.cos(angles)).max() <= ONE_UNIT
    assert np.abs(sines - np.sin(angles)).max() <= ONE_UNIT


def test_quarter_turns_and_their_neighbours_fall_into_the_right_quarter() -> None:
    angles = np.arange(200)[:, None] * (np.pi / 4) + np.array([-1e-9, 0.0, 1e-9])
    angles = np.abs(angles)
    cosines, sines = cos_sin(angles)
    assert np.abs(cosines - np.cos(angles)).max() <= ONE_UNIT
    assert np.abs(sines - np.sin(angles)).max() <= ONE_UNIT


def test_no_turn_is_exactly_none() -> None:
    cosines, sines = cos_sin(np.zeros(3))
    assert cosines.tolist() == [1.0] * 3
    assert sines.tolist() == [0.0] * 3


@pytest.mark.parametrize("scaling", [None, LinearScaling(4.0)])
def test_a_table_is_its_definition_rounded_once(scaling: LinearScaling | None) -> None:
    spec = RopeSpec(10_000.0, 16, 300, scaling)
    cosines, sines = tables(RopeUse(spec, 1.25, Pairing.HALF), 300)
    angles = np.arange(300)[:, None] * np.asarray(frequencies(spec))
    assert cosines.dtype == sines.dtype == np.float32
    assert cosines.shape == sines.shape == (300, 8)
    np.testing.assert_allclose(cosines, np.cos(angles) * 1.25, rtol=0, atol=2.0**-24)
    np.testing.assert_allclose(sines, np.sin(angles) * 1.25, rtol=0, atol=2.0**-24)


def test_a_shorter_table_is_the_beginning_of_a_longer_one() -> None:
    use = RopeUse(RopeSpec(500_000.0, 64, 5000), 1.0, Pairing.INTERLEAVED)
    for short, long in zip(tables(use, 100), tables(use, 5000), strict=True):
        assert np.array_equal(short, long[:100])
