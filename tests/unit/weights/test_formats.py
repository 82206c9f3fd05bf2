"""Formats: the geometry of blocks and what their bytes mean, against the `gguf` package bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from plait.core.errors import InvariantError
from plait.weights.formats import (
    ALL_FORMATS,
    BF16,
    F16,
    F32,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    Bytes,
    WeightFormat,
)
from plait.weights.gguf import read_gguf

NUM_BLOCKS = 4096


def random_blocks(weight_format: WeightFormat, seed: int) -> Bytes:
    """Every bit pattern is possible: scales are subnormal, infinite and NaN now and then."""
    return np.random.default_rng(seed).integers(0, 256, NUM_BLOCKS * weight_format.block_bytes, dtype=np.uint8)


def half(value: float) -> list[int]:
    return list(np.float16(value).tobytes())


@pytest.mark.parametrize("weight_format", ALL_FORMATS, ids=lambda known: known.name)
def test_random_blocks_become_the_same_floats_as_in_the_gguf_package(weight_format: WeightFormat) -> None:
    raw = random_blocks(weight_format, seed=7)
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(raw, GgmlType[weight_format.name])
    ours = weight_format.dequantize(raw)
    assert ours.dtype == np.float32
    assert np.isfinite(ours).mean() > 0.9
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(numbers, ~np.isnan(ours))
    np.testing.assert_array_equal(ours[numbers].view(np.uint32), theirs.reshape(-1)[numbers].view(np.uint32))


@pytest.mark.parametrize("weight_format", ALL_FORMATS, ids=lambda known: known.name)
def test_geometry_is_that_of_the_gguf_package(weight_format: WeightFormat) -> None:
    assert (weight_format.block_weights, weight_format.block_bytes) == gguf.GGML_QUANT_SIZES[
        GgmlType[weight_format.name]
    ]


@pytest.mark.parametrize(
    ("weight_format", "bits"),
    [
        *((F32, 32), (F16, 16), (BF16, 16), (Q8_0, 8.5), (Q4_0, 4.5), (Q4_1, 5.0)),
        *((Q5_0, 5.5), (Q5_1, 6.0), (Q4_K, 4.5), (Q5_K, 5.5), (Q6_K, 6.5625)),
    ],
)
def test_bits_per_weight_include_scales(weight_format: WeightFormat, bits: float) -> None:
    assert weight_format.bits_per_weight == bits


def test_q8_0_is_scale_times_signed_byte() -> None:
    raw = np.array([*half(0.5), *range(30), 0x80, 0xFF], dtype=np.uint8)
    assert Q8_0.dequantize(raw).tolist() == [0.5 * q for q in (*range(30), -128, -1)]


def test_q4_0_has_low_nibbles_first_and_an_offset_of_eight() -> None:
    raw = np.array([*half(2.0), *([0xF0] * 16)], dtype=np.uint8)
    assert Q4_0.dequantize(raw).tolist() == [-16.0] * 16 + [14.0] * 16


def test_q4_1_adds_a_minimum() -> None:
    raw = np.array([*half(2.0), *half(-3.0), *([0x51] * 16)], dtype=np.uint8)
    assert Q4_1.dequantize(raw).tolist() == [2.0 * 1 - 3.0] * 16 + [2.0 * 5 - 3.0] * 16


def test_q5_0_has_a_fifth_bit_for_each_weight_and_an_offset_of_sixteen() -> None:
    raw = np.array([*half(2.0), 0x02, 0x00, 0x01, 0x00, *([0xF3] * 16)], dtype=np.uint8)
    expected = [2.0 * (3 - 16)] * 16 + [2.0 * (15 - 16)] * 16
    expected[1], expected[16] = 2.0 * 3, 2.0 * 15
    assert Q5_0.dequantize(raw).tolist() == expected


def test_q5_1_adds_a_minimum() -> None:
    raw = np.array([*half(2.0), *half(-3.0), 0x00, 0x00, 0x00, 0x80, *([0x51] * 16)], dtype=np.uint8)
    expected = [2.0 * 1 - 3.0] * 16 + [2.0 * 5 - 3.0] * 15 + [2.0 * 21 - 3.0]
    assert Q5_1.dequantize(raw).tolist() == expected


SCALES_AND_MINIMA = [0b01_000001, 2, 3, 0b11_000100, 0b10_000101, 6, 7, 8, 0x21, 0x43, 0x65, 0x87]
"""Eight of each in six bits: the upper two of the last four are above the first eight."""
SCALES = [1, 2, 3, 4, 0x1 + 16, 0x3, 0x5, 0x7 + 48]
MINIMA = [5, 6, 7, 8, 0x2 + 32, 0x4, 0x6, 0x8]


def test_q4_k_scales_and_shifts_groups_of_32_in_six_bits() -> None:
    raw = np.array([*half(0.5), *half(0.25), *SCALES_AND_MINIMA, *([0xB9] * 128)], dtype=np.uint8)
    expected = [0.5 * s * (9, 11)[g % 2] - 0.25 * m for g, (s, m) in enumerate(zip(SCALES, MINIMA, strict=True))]
    assert Q4_K.dequantize(raw).reshape(8, 32).tolist() == [[weight] * 32 for weight in expected]


def test_q5_k_keeps_the_fifth_bits_of_eight_groups_in_a_byte() -> None:
    raw = np.array([*half(0.5), *half(0.25), *SCALES_AND_MINIMA, *([0x90] * 32), *([0xB9] * 128)], dtype=np.uint8)
    numbers = [9, 11, 9, 11, 9 + 16, 11, 9, 11 + 16]
    expected = [0.5 * s * q - 0.25 * m for q, s, m in zip(numbers, SCALES, MINIMA, strict=True)]
    assert Q5_K.dequantize(raw).reshape(8, 32).tolist() == [[weight] * 32 for weight in expected]


def test_q6_k_scales_sixteens_and_has_an_offset_of_32() -> None:
    signed = [-128, -1, *range(14)]
    nibbles, upper = [0x21] * 64 + [0x43] * 64, [0b11_10_01_00] * 64
    raw = np.array([*nibbles, *upper, *(s % 256 for s in signed), *half(0.5)], dtype=np.uint8)
    numbers = [1, 1 + 16, 2 + 32, 2 + 48, 3, 3 + 16, 4 + 32, 4 + 48]
    expected = [0.5 * s * (numbers[i // 2] - 32) for i, s in enumerate(signed)]
    assert Q6_K.dequantize(raw).reshape(16, 16).tolist() == [[weight] * 16 for weight in expected]


def test_bf16_is_the_upper_half_of_a_float() -> None:
    floats = np.array([1.0, -2.5, 3.0e38, np.inf], dtype=np.float32)
    upper = np.ascontiguousarray(floats.view(np.uint16)[1::2])
    np.testing.assert_array_equal(
        BF16.dequantize(upper.view(np.uint8)), (floats.view(np.uint32) >> 16 << 16).view("f4")
    )


@pytest.mark.parametrize("weight_format", ALL_FORMATS, ids=lambda known: known.name)
def test_any_cut_between_blocks_gives_the_same_bits(weight_format: WeightFormat) -> None:
    raw = random_blocks(weight_format, seed=3)
    cut = 1234 * weight_format.block_bytes
    parts = np.concatenate([weight_format.dequantize(raw[:cut]), weight_format.dequantize(raw[cut:])])
    np.testing.assert_array_equal(parts.view(np.uint32), weight_format.dequantize(raw).view(np.uint32))


def test_bytes_at_any_address_and_stride_are_read() -> None:
    padded = random_blocks(F32, seed=5)
    shifted = np.concatenate([padded[:1], padded])[1:]
    spread = np.repeat(padded, 2)[::2]
    for same in (shifted, spread):
        np.testing.assert_array_equal(F32.dequantize(same).view(np.uint32), F32.dequantize(padded).view(np.uint32))


def test_the_result_is_fresh_and_writable() -> None:
    raw = np.zeros(8, dtype=np.uint8)
    floats = F32.dequantize(raw)
    floats += 1
    assert raw.tolist() == [0] * 8


def test_a_torn_block_is_our_own_mistake() -> None:
    with pytest.raises(InvariantError, match="19 bytes are not whole Q4_0 blocks of 18 bytes"):
        Q4_0.dequantize(np.zeros(19, dtype=np.uint8))
    with pytest.raises(InvariantError, match="33 weights are not whole Q8_0 blocks of 32"):
        Q8_0.bytes_of(33)
    assert Q8_0.bytes_of(64) == 68


@pytest.mark.model
def test_every_weight_of_the_default_model_is_that_of_the_gguf_package(model_path: Path) -> None:
    for tensor in read_gguf(model_path).tensors.values():
        theirs = gguf.dequantize(tensor.raw(), GgmlType[tensor.format.name]).reshape(-1)
        ours = tensor.format.dequantize(tensor.raw())
        assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32)), tensor.name
