"""Formats: the geometry of blocks and what their bytes mean, against the `gguf` package bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from plait.core.errors import InvariantError
from plait.weights.formats import ALL_FORMATS, BF16, F16, F32, Q4_0, Q4_1, Q8_0, Bytes, WeightFormat
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
    ("weight_format", "bits"), [(F32, 32), (F16, 16), (BF16, 16), (Q8_0, 8.5), (Q4_0, 4.5), (Q4_1, 5.0)]
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
