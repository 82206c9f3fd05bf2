"""Grid blocks: codes that stand for four or eight weights at once, with signs and scales beside them.

Owns the IQ1, IQ2 and IQ3 formats, blocks of 256 weights: each function takes them apart as `blocks_table.py` does. The
points of the grids are in `grids.py`.
Invariant: elementwise over blocks; a weight is exactly scale * number, in float32.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from plait.weights.block_bits import FOUR, NIBBLE, Bytes, Floats, Numbers, bits, halves
from plait.weights.blocks_table import Parts
from plait.weights.grids import IQ1_S_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID

Words: Final = np.uint16

_SEVEN_BITS: Final = np.arange(0, 28, 7, dtype=np.uint32)
_THREE_BITS: Final = np.arange(0, 12, 3, dtype=np.uint16)


def _words(blocks: Bytes, first: int, end: int, kind: str) -> npt.NDArray[np.unsignedinteger]:
    return np.ascontiguousarray(blocks[:, first:end]).view(kind)


def _points(grid: Numbers, codes: npt.NDArray[np.integer]) -> Numbers:
    """Codes [n, k] become numbers [n, 256]."""
    points: Numbers = grid[codes].reshape(len(codes), -1)
    return points


def _signed(numbers: Numbers, signs: Bytes) -> Numbers:
    """Numbers [n, 256] with the signs of 32 bytes, a bit each: 1 is minus."""
    return np.where(bits(np.ascontiguousarray(signs)), -numbers, numbers)


def _completed(seven: npt.NDArray[np.integer]) -> Bytes:
    """Seven signs become eight: the last makes the number of minus signs even."""
    low = seven.astype(np.uint8)
    parity = low ^ low >> FOUR
    parity ^= parity >> np.uint8(2)
    parity ^= parity >> np.uint8(1)
    return low | (parity & np.uint8(1)) << np.uint8(7)


def _nibble_scales(packed: Bytes) -> Floats:
    """Sixteen, or eight, numbers of 4 bits: those of a byte follow each other."""
    pairs = np.stack([packed & NIBBLE, packed >> FOUR], axis=-1)
    return pairs.reshape(len(packed), -1).astype(np.float32)


def iq2_xxs_parts(blocks: Bytes) -> Parts:
    """half d | 8 times: 4 bytes of codes, then four times seven signs below 4 bits of scale.

    A scale is d * (1/2 + its bits) / 4.
    """
    rest = blocks[:, 2:].reshape(len(blocks), 8, 8)
    words = np.ascontiguousarray(rest[:, :, 4:]).view("<u4").reshape(-1, 8, 1)
    scales = halves(blocks, 0) * (np.float32(0.5) + (words[:, :, 0] >> np.uint32(28)).astype(np.float32))
    signs = _completed((words >> _SEVEN_BITS & np.uint32(127)).reshape(-1, 32))
    numbers = _points(IQ2_XXS_GRID, rest[:, :, :4].reshape(-1, 32))
    return np.repeat(scales * np.float32(0.25), 2, axis=1), _signed(numbers, signs)


def iq2_xs_parts(blocks: Bytes) -> Parts:
    """half d | 32 times nine bits of code below seven signs | 8 bytes of scales in sixteens, d * (1/2 + bits) / 4."""
    words = _words(blocks, 2, 66, "<u2")
    scales = halves(blocks, 0) * (np.float32(0.5) + _nibble_scales(blocks[:, 66:74]))
    numbers = _points(IQ2_XS_GRID, words & Words(511))
    return scales * np.float32(0.25), _signed(numbers, _completed(words >> Words(9)))


def iq2_s_parts(blocks: Bytes) -> Parts:
    """half d | 32 bytes of codes | 32 of signs | 8 of two upper bits of four codes | scales as in IQ2_XS."""
    upper = blocks[:, 66:74, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    codes = blocks[:, 2:34] | upper.reshape(-1, 32).astype(Words) << Words(8)
    scales = halves(blocks, 0) * (np.float32(0.5) + _nibble_scales(blocks[:, 74:82]))
    return scales * np.float32(0.25), _signed(_points(IQ2_S_GRID, codes), blocks[:, 34:66])


def iq3_xxs_parts(blocks: Bytes) -> Parts:
    """half d | 64 bytes of codes | 8 times four times seven signs below 4 bits of scale, d * (1/2 + bits) / 2."""
    words = _words(blocks, 66, 98, "<u4")[:, :, None]
    scales = halves(blocks, 0) * (np.float32(0.5) + (words[:, :, 0] >> np.uint32(28)).astype(np.float32))
    signs = _completed((words >> _SEVEN_BITS & np.uint32(127)).reshape(-1, 32))
    numbers = _points(IQ3_XXS_GRID, blocks[:, 2:66])
    return np.repeat(scales * np.float32(0.5), 2, axis=1), _signed(numbers, signs)


def iq3_s_parts(blocks: Bytes) -> Parts:
    """half d | 64 bytes of codes | 8 of ninth bits | 32 of signs | 4 of scales, d * (1 + 2 * their bits)."""
    codes = blocks[:, 2:66] | bits(np.ascontiguousarray(blocks[:, 66:74])).astype(Words) << Words(8)
    scales = halves(blocks, 0) * (np.float32(1) + np.float32(2) * _nibble_scales(blocks[:, 106:110]))
    return np.repeat(scales, 2, axis=1), _signed(_points(IQ3_S_GRID, codes), blocks[:, 74:106])


def _shifted(points: Numbers, shift_down: npt.NDArray[np.bool_]) -> Numbers:
    """Eight times points [n, 256] that lie an eighth above, or below, those of the grid."""
    shift = np.where(shift_down, np.int8(-1), np.int8(1))
    shifted: Numbers = points * np.int8(8) + np.repeat(shift, points.shape[1] // shift.shape[1], axis=1)
    return shifted


def iq1_s_parts(blocks: Bytes) -> Parts:
    """half d | 32 bytes of codes | 8 times: four times three upper bits, three bits of scale, one of shift.

    A scale is d * (1 + 2 * its bits); points of the grid are shifted by 1/8, down if the bit is set.
    """
    words = _words(blocks, 34, 50, "<u2")
    upper = (words[:, :, None] >> _THREE_BITS & Words(7)).reshape(-1, 32)
    scales = halves(blocks, 0) * (np.float32(1) + np.float32(2) * (words >> Words(12) & Words(7)).astype(np.float32))
    points = _points(IQ1_S_GRID, blocks[:, 2:34] | upper << Words(8))
    return np.repeat(scales * np.float32(0.125), 2, axis=1), _shifted(points, words & Words(0x8000) != 0)


def iq1_m_parts(blocks: Bytes) -> Parts:
    """32 bytes of codes | 16 of nibbles, three upper bits and a shift | 4 times four scales below 4 bits of half d."""
    words = _words(blocks, 48, 56, "<u2")
    top = (words >> Words(12)) << np.arange(0, 16, 4, dtype=Words)
    d = np.bitwise_or.reduce(top, axis=1, keepdims=True).astype(Words).view(np.float16).astype(np.float32)
    three = (words[:, :, None] >> _THREE_BITS & Words(7)).reshape(-1, 16).astype(np.float32)
    high = np.stack([blocks[:, 32:48] & NIBBLE, blocks[:, 32:48] >> FOUR], axis=-1).reshape(-1, 32)
    points = _points(IQ1_S_GRID, blocks[:, :32] | (high & np.uint8(7)).astype(Words) << Words(8))
    scales = d * (np.float32(1) + np.float32(2) * three) * np.float32(0.125)
    return scales, _shifted(points, high & np.uint8(8) != 0)
