"""Rounding at load: bytes by the definition, near the weights, and the same however rows are read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InvariantError, ModelError
from plait.weights.formats import F16, F32, INT8, Q4_0, Q4_1, Q8_0, Bytes, Floats, WeightFormat
from plait.weights.rounding import restored, rounded
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

WIDTHS = (32, 64, 96, 128, 160, 224, 576)


def random_weights(rows: int, width: int, seed: int = 1) -> Floats:
    weights = np.random.default_rng(seed).normal(0, 0.1, (rows, width)).astype(np.float32)
    weights[:, 5] *= 20
    return weights


def round_all(weights: Floats, to: WeightFormat) -> Bytes:
    return rounded(*weights.shape, lambda start, stop: weights[start:stop].copy(), to)


def back(raw: Bytes, of: WeightFormat) -> Floats:
    return restored(of.dequantize(raw).reshape(len(raw), -1), of)


def hadamard(size: int) -> Floats:
    """Numbers 8, 16, ... apart are combined, as many as a power of two divides."""
    distance, matrix = 8, np.eye(size, dtype=np.float32)
    while size % (2 * distance) == 0:
        step = np.zeros((size, size), np.float32)
        for k in range(size):
            first = k // distance % 2 == 0
            step[k, k] = 1 if first else -1
            step[k, k + distance if first else k - distance] = 1
        matrix = step @ matrix
        distance *= 2
    return matrix


@pytest.mark.parametrize("width", WIDTHS)
def test_int8_is_the_mixed_weights_rounded_by_the_largest_of_128(width: int) -> None:
    weights = random_weights(7, width)
    blocks = round_all(weights, INT8).reshape(7, width // 32, 36)
    scales = np.ascontiguousarray(blocks[:, :, :4]).view(np.float32)[:, :, 0]
    numbers = np.ascontiguousarray(blocks[:, :, 4:]).view(np.int8).reshape(7, width)
    for first in range(0, width, 128):
        size = min(128, width - first)
        matrix = hadamard(size)
        order = round(float(matrix[0].sum()))
        assert np.array_equal(matrix @ matrix, order * np.eye(size))
        mixed = weights[:, first : first + size].astype(np.float64) @ matrix / order
        scale = np.abs(mixed).max(axis=1) / 127
        group = scales[:, first // 32 : (first + size) // 32]
        np.testing.assert_allclose(group, np.repeat(scale[:, None], size // 32, axis=1), rtol=1e-6)
        assert np.abs(numbers[:, first : first + size] - mixed / scale[:, None]).max() <= 0.5 + 1e-4
        assert (np.abs(numbers[:, first : first + size]).max(axis=1) == 127).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_int8_weights_come_back_within_a_mixed_half_step(width: int) -> None:
    weights = random_weights(5, width)
    given = back(round_all(weights, INT8), INT8)
    assert np.linalg.norm(given - weights) < 0.01 * np.linalg.norm(weights)


def test_mixing_makes_a_large_weight_harmless() -> None:
    weights = random_weights(4, 128)
    plain = np.rint(weights * (127 / np.abs(weights).max(axis=1, keepdims=True)))
    plain *= np.abs(weights).max(axis=1, keepdims=True) / 127
    lost = np.linalg.norm(back(round_all(weights, INT8), INT8) - weights)
    assert lost < 0.75 * np.linalg.norm(plain - weights)


def test_groups_of_zeros_and_of_almost_zeros_are_zero() -> None:
    weights = np.zeros((2, 256), np.float32)
    weights[1] = 1e-38
    assert not back(round_all(weights, INT8), INT8).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("to", [INT8, Q4_1], ids=lambda one: one.name)
def test_what_is_not_a_number_stays_visible_and_in_its_group(bad: float, to: WeightFormat) -> None:
    weights = random_weights(2, 256)
    weights[1, 200] = bad
    given = back(round_all(weights, to), to)
    assert not np.isfinite(given[1, 200])
    assert np.isfinite(given[0]).all()
    assert np.isfinite(given[1, :128]).all()


@given(depth=st.sampled_from([32, 64, 160]), seed=st.integers(0, 50), size=st.sampled_from([1e-7, 1e-3, 1.0, 1e3]))
@settings(max_examples=30, deadline=None)
def test_four_bits_are_within_half_a_step_of_the_weights(depth: int, seed: int, size: float) -> None:
    weights = random_weights(3, depth, seed) * np.float32(size)
    given = back(round_all(weights, Q4_1), Q4_1).reshape(3, -1, 32)
    groups = weights.reshape(3, -1, 32)
    span = groups.max(axis=2, keepdims=True) - groups.min(axis=2, keepdims=True)
    # Halves hold the scale and the minimum; below 2^-14 their steps stop shrinking.
    allowed = span / 30 + np.abs(groups).max(axis=2, keepdims=True) * 2.0**-9 + 2.0**-21
    assert (np.abs(given - groups) <= allowed).all()


@pytest.mark.parametrize("to", [INT8, Q4_1], ids=lambda one: one.name)
@pytest.mark.parametrize("source", [F32, F16, Q8_0], ids=lambda one: one.name)
def test_a_rounded_tensor_reads_the_same_whole_in_parts_and_row_by_row(source: WeightFormat, to: WeightFormat) -> None:
    random = np.random.default_rng(3)
    stored = random.integers(0, 60, (300, source.bytes_of(576)), dtype=np.uint8)
    order = random.permutation(300)
    tensor = Tensor("w", (300, 576), to, stored, order, rounded_from=source)
    whole = tensor.raw()
    assert whole.shape == (300, to.bytes_of(576))
    assert np.array_equal(whole[70:90], tensor.raw(70, 90))
    plain = Tensor("w", (300, 576), source, stored, order)
    assert np.array_equal(whole, round_all(plain.dequantize(), to))
    floats = tensor.dequantize()
    assert np.array_equal(floats[70:90], tensor.dequantize(70, 90))
    assert np.array_equal(floats[[5, 299, 5]], tensor.dequantize_rows(np.array([5, 299, 5])))


def test_memory_holds_a_scale_once_for_its_128_weights() -> None:
    tensor = Tensor("w", (2, 256), INT8, np.zeros((2, 1024), np.uint8), rounded_from=F32)
    assert INT8.bits_per_weight == 8.25
    assert tensor.num_bytes == 2 * (256 + 2 * 4)


def test_only_formats_with_a_rounding_can_be_rounded_to() -> None:
    with pytest.raises(InvariantError, match="nothing is rounded to Q4_0, only to INT8, Q4_1"):
        Tensor("w", (2, 32), Q4_0, np.zeros((2, 128), np.uint8), rounded_from=F32)


def table_of(width: int = 64, form: WeightFormat = F32) -> WeightTable:
    def tensor(name: str) -> Tensor:
        return Tensor(name, (4, width), form, np.ones((4, form.bytes_of(width)), np.uint8))

    return WeightTable({name: tensor(name) for name in ("embed", "q")}, Path("m.gguf"), "ab" * 32)


MATRICES = {"q": "q", "head": "embed"}


def test_a_tied_head_becomes_a_matrix_of_its_own_and_look_ups_keep_the_files_numbers() -> None:
    table = table_of().rounded("int8", MATRICES, "head")
    assert {name: tensor.format for name, tensor in table.items()} == {"embed": F32, "q": INT8, "head": INT8}
    assert table["head"].name == "head"
    assert np.shares_memory(table["head"].stored, table["embed"].stored)


def test_four_bits_leave_what_is_as_small_and_keep_the_head_in_eight() -> None:
    table = table_of().rounded("int4", MATRICES, "head")
    assert (table["q"].format, table["head"].format) == (Q4_1, INT8)
    for form in (Q4_0, Q4_1):
        table = table_of(form=form).rounded("int4", MATRICES, "head")
        assert (table["q"].format, table["q"].rounded_from) == (form, None)
        assert table["head"].format is INT8


def test_rounded_weights_have_another_identity() -> None:
    table = table_of()
    identities = [table.identity, *(table.rounded(kind, MATRICES, "head").identity for kind in ("int8", "int4"))]
    assert identities == ["ab" * 32, "ab" * 32 + "+int8", "ab" * 32 + "+int4"]
    assert table.rounded("int8", MATRICES, "head").short_identity == "ab" * 8 + "+int8"
    assert table.rounded("int8", MATRICES, "head").sha256 == table.sha256


def test_rows_that_are_no_whole_groups_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"weight q has rows of 48 numbers, .* of 32; leave out --quantize"):
        table_of(48).rounded("int8", MATRICES, "head")
