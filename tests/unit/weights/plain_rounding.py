"""Rounding to formats that Plait only reads, as plainly as can be: real weights for tests of these formats.

Owns one way to choose numbers for each; programs that make model files choose better ones. Invariant: what comes out
are valid blocks whose weights are near those that went in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from plait.weights import formats
from plait.weights.blocks_table import FP4_NUMBERS, IQ4_NUMBERS
from plait.weights.formats import Bytes, Floats, WeightFormat


def plainly_rounded(array: Floats, form: WeightFormat) -> Bytes:
    """Rows of a matrix, [rows, row_bytes]."""
    blocks = _ROUNDERS[form.name](array.reshape(-1, form.block_weights))
    return np.ascontiguousarray(blocks).reshape(len(array), -1)


def _half(values: Floats) -> Bytes:
    return values.astype("<f2").view(np.uint8)


def _nearest(values: Floats, numbers: np.ndarray[tuple[int], np.dtype[np.int8]]) -> Bytes:
    """Places of the nearest numbers in a table."""
    order = np.argsort(numbers, kind="stable")
    known = numbers[order].astype(np.float32)
    return order[np.searchsorted((known[1:] + known[:-1]) / 2, values)].astype(np.uint8)


def _nibbles(codes: Bytes) -> Bytes:
    half = codes.shape[1] // 2
    return codes[:, :half] | codes[:, half:] << 4


def _iq4_nl(blocks: Floats) -> Bytes:
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    codes = _nearest(blocks / np.where(scale > 0, scale, 1), IQ4_NUMBERS)
    return np.concatenate([_half(scale), _nibbles(codes)], axis=1)


def _mxfp4(blocks: Floats) -> Bytes:
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    exponent = np.clip(np.floor(np.log2(np.maximum(largest, 1e-30))) - 2 + 127, 2, 254)
    codes = _nearest(blocks / np.exp2(exponent - 128).astype(np.float32), FP4_NUMBERS)
    return np.concatenate([exponent.astype(np.uint8), _nibbles(codes)], axis=1)


def _pairs(numbers: Bytes) -> Bytes:
    """Two bits of 256 numbers as K blocks lay them: four groups of 32 share 32 bytes."""
    groups = numbers.reshape(-1, 2, 4, 32)
    return (groups[:, :, 0] | groups[:, :, 1] << 2 | groups[:, :, 2] << 4 | groups[:, :, 3] << 6).reshape(-1, 64)


def _q2_k(blocks: Floats) -> Bytes:
    sixteens = blocks.reshape(-1, 16, 16)
    low = np.maximum(0, -sixteens.min(axis=2))
    step = (sixteens.max(axis=2) + low) / 3
    d, d_min = (np.maximum(part.max(axis=1, keepdims=True) / 15, 1e-6) for part in (step, low))
    scales, minima = (np.rint(part / of).clip(0, 15) for part, of in ((step, d), (low, d_min)))
    used = np.maximum(d * scales, 1e-9)[:, :, None]
    numbers = np.rint((sixteens + (d_min * minima)[:, :, None]) / used).clip(0, 3).astype(np.uint8)
    both = scales.astype(np.uint8) | minima.astype(np.uint8) << 4
    return np.concatenate([both, _pairs(numbers), _half(d), _half(d_min)], axis=1)


def _q3_k(blocks: Floats) -> Bytes:
    sixteens = blocks.reshape(-1, 16, 16)
    step = np.abs(sixteens).max(axis=2) / 4
    d = np.maximum(step.max(axis=1, keepdims=True) / 31, 1e-6)
    scales = np.rint(step / d).clip(1, 31)
    numbers = (np.rint(sixteens / (d * scales)[:, :, None]).clip(-4, 3) + 4).astype(np.uint8)
    high = np.bitwise_or.reduce((numbers.reshape(-1, 8, 32) >> 2) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    six = (scales + 32).astype(np.uint8)
    low = six[:, :8] & 15 | (six[:, 8:] & 15) << 4
    upper = six.reshape(-1, 4, 4) >> 4
    packed = upper[:, 0] | upper[:, 1] << 2 | upper[:, 2] << 4 | upper[:, 3] << 6
    return np.concatenate([high, _pairs(numbers & 3), low, packed, _half(d)], axis=1)


_ROUNDERS: Mapping[str, Callable[[Floats], Bytes]] = {
    formats.IQ4_NL.name: _iq4_nl,
    formats.MXFP4.name: _mxfp4,
    formats.Q2_K.name: _q2_k,
    formats.Q3_K.name: _q3_k,
}
