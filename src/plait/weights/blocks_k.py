"""K blocks: 256 weights whose groups of 16 or 32 have small integers for scales.

Owns what the bytes of these formats mean, in float32; `formats.py` has their names and sizes.
Invariant: elementwise over blocks; products of a half and a scale are exact.
"""

from __future__ import annotations

import numpy as np

from plait.weights.block_bits import FOUR, NIBBLE, Bytes, Floats, bit_pairs, halves, put_nibbles


def unpack_q2_k(blocks: Bytes, floats: Floats) -> None:
    """16 bytes, scale in the low nibble and minimum in the high | 64 bytes of 2-bit numbers | half d | half d_min.

    Weights are (d * scale) * q - (d_min * minimum) in sixteens, each step rounded.
    """
    sixteens = floats.reshape(-1, 16, 16)
    sixteens[...] = bit_pairs(blocks[:, 16:80]).reshape(-1, 16, 16)
    sixteens *= (halves(blocks, 80) * (blocks[:, :16] & NIBBLE))[:, :, None]
    sixteens -= (halves(blocks, 82) * (blocks[:, :16] >> FOUR))[:, :, None]


def unpack_q3_k(blocks: Bytes, floats: Floats) -> None:
    """32 bytes, bit g of byte k being bit 2 of weight k of group g | 64 bytes of 2-bit numbers | 12 bytes | half d.

    The twelve hold 16 scales in 6 bits: low nibbles of the first eight bytes, high nibbles, then two upper bits each.
    Weights are (d * (scale - 32)) * (q - 4) in sixteens.
    """
    sixteens = floats.reshape(-1, 16, 16)
    sixteens[...] = bit_pairs(blocks[:, 32:96]).reshape(-1, 16, 16)
    high = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    sixteens += (high << np.uint8(2)).reshape(-1, 16, 16)
    sixteens -= np.float32(4)
    low = np.concatenate([blocks[:, 96:104] & NIBBLE, blocks[:, 96:104] >> FOUR], axis=1)
    upper = blocks[:, None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    scales = (low | upper.reshape(-1, 16) << FOUR).view(np.int8) - np.int8(32)
    sixteens *= (halves(blocks, 108) * scales)[:, :, None]


def _scale_k(blocks: Bytes, groups: Floats) -> None:
    """Numbers of Q4_K and Q5_K, [n, 8, 32], become weights: (d * scale) * q - (d_min * minimum), each step rounded.

    half d | half d_min | 12 bytes: scales 0-3, minima 0-3 and, in nibbles, low parts of scales and minima 4-7 take four
    each; the first eight lend their two upper bits to the others.
    """
    scales, minima, low = (blocks[:, 4 + at : 8 + at] for at in (0, 4, 8))
    upper = np.uint8(0x30)
    six_bits = np.uint8(0x3F)
    scales = np.concatenate([scales & six_bits, low & NIBBLE | scales >> np.uint8(2) & upper], axis=1)
    minima = np.concatenate([minima & six_bits, low >> FOUR | minima >> np.uint8(2) & upper], axis=1)
    groups *= (halves(blocks, 0) * scales)[:, :, None]
    groups -= (halves(blocks, 2) * minima)[:, :, None]


def unpack_q4_k(blocks: Bytes, floats: Floats) -> None:
    """scales and minima | 4 times 32 bytes whose low nibbles are one group of 32 weights and high nibbles the next."""
    put_nibbles(blocks[:, 16:].reshape(-1, 4, 32), floats.reshape(-1, 4, 64))
    _scale_k(blocks, floats.reshape(-1, 8, 32))


def unpack_q5_k(blocks: Bytes, floats: Floats) -> None:
    """scales and minima | 32 bytes, bit g of byte k being bit 4 of weight k of group g | nibbles as in Q4_K."""
    put_nibbles(blocks[:, 48:].reshape(-1, 4, 32), floats.reshape(-1, 4, 64))
    groups = floats.reshape(-1, 8, 32)
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    groups += high << FOUR
    _scale_k(blocks, groups)


def unpack_q6_k(blocks: Bytes, floats: Floats) -> None:
    """128 bytes of nibbles | 64 bytes of two upper bits | 16 int8 scales | half d: (d * scale) * (q - 32) in sixteens.

    Each half of the weights has 64 and 32 of these bytes: low nibbles are its first 64 weights, high ones the others;
    bits 2 g and 2 g + 1 of byte k belong to weight k of its group g.
    """
    put_nibbles(blocks[:, :128].reshape(-1, 2, 64), floats.reshape(-1, 2, 128))
    groups = floats.reshape(-1, 2, 4, 32)
    groups += bit_pairs(blocks[:, 128:192]) << FOUR
    sixteens = floats.reshape(-1, 16, 16)
    sixteens -= np.float32(32)
    sixteens *= (halves(blocks, 208) * blocks[:, 192:208].view(np.int8))[:, :, None]
