"""Plain blocks: floats, and 32 weights with one scale and perhaps a minimum.

Owns what the bytes of these formats mean, in float32; `formats.py` has their names and sizes.
Invariant: elementwise over blocks.
"""

from __future__ import annotations

import numpy as np

from plait.weights.block_bits import FOUR, HALF, NIBBLE, Bytes, Floats, bits, halves, put_nibbles


def unpack_f32(blocks: Bytes, floats: Floats) -> None:
    floats[...] = blocks.view("<f4")


def unpack_byte(blocks: Bytes, floats: Floats) -> None:
    floats[...] = blocks


def unpack_f16(blocks: Bytes, floats: Floats) -> None:
    floats[...] = blocks.view(HALF)


def unpack_bf16(blocks: Bytes, floats: Floats) -> None:
    np.left_shift(blocks.view("<u2"), 16, out=floats.view(np.uint32), dtype=np.uint32)


def unpack_q8_0(blocks: Bytes, floats: Floats) -> None:
    """half scale | 32 int8: weight = scale * q."""
    np.multiply(blocks[:, 2:].view(np.int8), halves(blocks, 0), out=floats)


def unpack_q4_0(blocks: Bytes, floats: Floats) -> None:
    """half scale | 16 bytes, low nibbles are weights 0-15 and high nibbles 16-31: weight = scale * (q - 8)."""
    scale = halves(blocks, 0)
    packed = blocks[:, 2:]
    np.multiply((packed & NIBBLE).view(np.int8) - np.int8(8), scale, out=floats[:, :16])
    np.multiply((packed >> FOUR).view(np.int8) - np.int8(8), scale, out=floats[:, 16:])


def unpack_q4_1(blocks: Bytes, floats: Floats) -> None:
    """half scale | half minimum | 16 bytes, nibbles as in Q4_0: weight = scale * q + minimum, rounded twice."""
    scale = halves(blocks, 0)
    packed = blocks[:, 4:]
    np.multiply(packed & NIBBLE, scale, out=floats[:, :16])
    np.multiply(packed >> FOUR, scale, out=floats[:, 16:])
    floats += halves(blocks, 2)


def _put_five_bits(blocks: Bytes, floats: Floats) -> None:
    """4 bytes, bit k of which is bit 4 of weight k | 16 bytes of nibbles as in Q4_0."""
    put_nibbles(blocks[:, 4:], floats)
    floats += bits(blocks[:, :4]) << FOUR


def unpack_q5_0(blocks: Bytes, floats: Floats) -> None:
    """half scale | 5-bit numbers: weight = scale * (q - 16)."""
    _put_five_bits(blocks[:, 2:], floats)
    floats -= np.float32(16)
    floats *= halves(blocks, 0)


def unpack_q5_1(blocks: Bytes, floats: Floats) -> None:
    """half scale | half minimum | 5-bit numbers as in Q5_0: weight = scale * q + minimum, rounded twice."""
    _put_five_bits(blocks[:, 4:], floats)
    floats *= halves(blocks, 0)
    floats += halves(blocks, 2)


def unpack_int8(blocks: Bytes, floats: Floats) -> None:
    """float scale | 32 int8: number = scale * q. Four blocks of a row share the scale; `rounding.py` has the rest."""
    np.multiply(blocks[:, 4:].view(np.int8), blocks[:, 0:4].view("<f4"), out=floats)
