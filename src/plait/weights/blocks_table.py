"""Table blocks: numbers that codes of one to four bits stand for, times scales.

Owns IQ4, FP4 and ternary formats: each function takes blocks apart into float scales of sixteen neighbouring weights
and 8-bit numbers. `blocks_grid.py` has the formats whose codes stand for several weights at once.
Invariant: elementwise over blocks; a weight is exactly scale * number, in float32.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from plait.weights.block_bits import FOUR, NIBBLE, Bytes, Floats, Numbers, bit_pairs, halves, nibbles

Parts: TypeAlias = tuple[Floats, Numbers]
"""Scales [n, weights / 16] and numbers [n, weights]."""

IQ4_NUMBERS: Final = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8)
FP4_NUMBERS: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.int8)
"""Twice what the codes of a float with two bits of exponent and one of mantissa mean."""
_POWERS_OF_THREE: Final = np.array([1, 3, 9, 27, 81], dtype=np.uint8)


def iq4_nl_parts(blocks: Bytes) -> Parts:
    """half scale | 16 bytes of codes, nibbles as in Q4_0."""
    return np.repeat(halves(blocks, 0), 2, axis=1), IQ4_NUMBERS[nibbles(blocks[:, 2:])]


def iq4_xs_parts(blocks: Bytes) -> Parts:
    """half d | 2 bytes of two upper bits | 4 bytes of low nibbles: 8 scales | 8 times 16 bytes as in IQ4_NL.

    A scale is d * (its six bits - 32).
    """
    upper = blocks[:, 2:4].copy().view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    low = np.stack([blocks[:, 4:8] & NIBBLE, blocks[:, 4:8] >> FOUR], axis=-1).reshape(-1, 8)
    scales = (low | upper.astype(np.uint8) << FOUR).view(np.int8) - np.int8(32)
    codes = nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)
    return np.repeat(halves(blocks, 0) * scales, 2, axis=1), IQ4_NUMBERS[codes]


def mxfp4_parts(blocks: Bytes) -> Parts:
    """A byte of exponent e | 16 bytes of codes as in Q4_0; the scale is 2^(e - 128), subnormal where e is 0 or 1."""
    exponent = blocks[:, :1].astype(np.uint32)
    scale = np.where(exponent < 2, np.uint32(0x00200000) << exponent, (exponent - 1) << np.uint32(23))
    return np.repeat(scale.astype(np.uint32).view(np.float32), 2, axis=1), FP4_NUMBERS[nibbles(blocks[:, 1:])]


def nvfp4_parts(blocks: Bytes) -> Parts:
    """Four scales, 4 bits of exponent above 3 of mantissa | 4 times 8 bytes of codes, low nibbles first.

    A scale is half of what its bits mean; 0x7f is no number and counts as zero.
    """
    exponent = (blocks[:, :4] >> np.uint8(3) & NIBBLE).astype(np.int32)
    mantissa = (blocks[:, :4] & np.uint8(7)).astype(np.float32)
    normal = np.ldexp(np.float32(1) + mantissa / np.float32(8), exponent - 8)
    scales = np.where(exponent == 0, np.ldexp(mantissa, -10), normal)
    scales[blocks[:, :4] == 0x7F] = 0
    codes = nibbles(blocks[:, 4:].reshape(-1, 4, 8)).reshape(-1, 64)
    return scales.astype(np.float32, copy=False), FP4_NUMBERS[codes]


def tq1_0_parts(blocks: Bytes) -> Parts:
    """48 bytes of five weights | 4 bytes of four | half scale. A byte b holds digits of base 3, b / 256 in all.

    Digit i of byte k is weight 32 i + k of the first 32 bytes, 16 i + k of the next 16, 4 i + k of the last 4.
    """
    digits = []
    for first, end, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        shifted = blocks[:, None, first:end] * _POWERS_OF_THREE[:count, None]  # modulo 256: digits above are gone
        digits.append((shifted.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).reshape(len(blocks), -1))
    numbers = np.concatenate(digits, axis=1).astype(np.int8) - np.int8(1)
    return np.repeat(halves(blocks, 52), 16, axis=1), numbers


def tq2_0_parts(blocks: Bytes) -> Parts:
    """64 bytes of 2-bit numbers, each one more than what it means | half scale."""
    numbers = bit_pairs(blocks[:, :64]).reshape(-1, 256).view(np.int8) - np.int8(1)
    return np.repeat(halves(blocks, 64), 16, axis=1), numbers
