"""Weight formats: how weights lie in bytes.

Owns the block geometry of every supported format and its NumPy definition of dequantisation to float32, which native
kernels are checked against. Knows nothing about files or tensor names.
Invariant: dequantisation is elementwise over blocks, so any split into whole blocks gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from plait.core.errors import InvariantError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

_HALF: Final = np.dtype("<f2")
_NIBBLE: Final = np.uint8(0x0F)
_FOUR: Final = np.uint8(4)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """`block_weights` neighbouring weights of a row share `block_bytes` bytes, scales included."""

    name: str
    block_weights: int
    block_bytes: int
    unpack: Callable[[Bytes, Floats], None]
    """Writes blocks [n, block_bytes] as floats into [n, block_weights]."""
    repeated_bytes: int = 0
    """Of `block_bytes`: what other blocks hold as well and memory keeps once."""

    @property
    def bits_per_weight(self) -> float:
        """Bits that one weight costs in memory, its part of scales and minima included."""
        return 8 * (self.block_bytes - self.repeated_bytes) / self.block_weights

    def bytes_of(self, num_weights: int) -> int:
        """Bytes of `num_weights` neighbouring weights of one row, which must be whole blocks."""
        if num_weights % self.block_weights:
            raise InvariantError(f"{num_weights} weights are not whole {self.name} blocks of {self.block_weights}")
        return num_weights // self.block_weights * self.block_bytes

    def dequantize(self, raw: Bytes) -> Floats:
        """A fresh flat float32 array of the weights in `raw`, which holds whole blocks in order."""
        if raw.size % self.block_bytes:
            raise InvariantError(f"{raw.size} bytes are not whole {self.name} blocks of {self.block_bytes} bytes")
        blocks = np.ascontiguousarray(raw).reshape(-1, self.block_bytes)
        floats = np.empty((len(blocks), self.block_weights), dtype=np.float32)
        # A file may hold NaN or infinite scales; what they become is the numbers' business, not a warning on stderr.
        with np.errstate(invalid="ignore", over="ignore"):
            self.unpack(blocks, floats)
        return floats.reshape(-1)


def _unpack_f32(blocks: Bytes, floats: Floats) -> None:
    floats[...] = blocks.view("<f4")


def _unpack_f16(blocks: Bytes, floats: Floats) -> None:
    floats[...] = blocks.view(_HALF)


def _unpack_bf16(blocks: Bytes, floats: Floats) -> None:
    np.left_shift(blocks.view("<u2"), 16, out=floats.view(np.uint32), dtype=np.uint32)


def _unpack_q8_0(blocks: Bytes, floats: Floats) -> None:
    """half scale | 32 int8: weight = scale * q."""
    scale = blocks[:, 0:2].view(_HALF).astype(np.float32)
    np.multiply(blocks[:, 2:].view(np.int8), scale, out=floats)


def _unpack_q4_0(blocks: Bytes, floats: Floats) -> None:
    """half scale | 16 bytes, low nibbles are weights 0-15 and high nibbles 16-31: weight = scale * (q - 8)."""
    scale = blocks[:, 0:2].view(_HALF).astype(np.float32)
    packed = blocks[:, 2:]
    np.multiply((packed & _NIBBLE).view(np.int8) - np.int8(8), scale, out=floats[:, :16])
    np.multiply((packed >> np.uint8(4)).view(np.int8) - np.int8(8), scale, out=floats[:, 16:])


def _unpack_q4_1(blocks: Bytes, floats: Floats) -> None:
    """half scale | half minimum | 16 bytes, nibbles as in Q4_0: weight = scale * q + minimum, rounded twice."""
    scale = blocks[:, 0:2].view(_HALF).astype(np.float32)
    minimum = blocks[:, 2:4].view(_HALF).astype(np.float32)
    packed = blocks[:, 4:]
    np.multiply(packed & _NIBBLE, scale, out=floats[:, :16])
    np.multiply(packed >> np.uint8(4), scale, out=floats[:, 16:])
    floats += minimum


def _put_nibbles(packed: Bytes, floats: Floats) -> None:
    """Low nibbles are the first half of the weights, high nibbles the second."""
    half = packed.shape[-1]
    np.bitwise_and(packed, _NIBBLE, out=floats[..., :half], casting="unsafe")
    np.right_shift(packed, _FOUR, out=floats[..., half:], casting="unsafe")


def _put_five_bits(blocks: Bytes, floats: Floats) -> None:
    """4 bytes, bit k of which is bit 4 of weight k | 16 bytes of nibbles as in Q4_0."""
    _put_nibbles(blocks[:, 4:], floats)
    high = np.unpackbits(blocks[:, :4], axis=1, bitorder="little")
    floats += high << _FOUR


def _unpack_q5_0(blocks: Bytes, floats: Floats) -> None:
    """half scale | 5-bit numbers: weight = scale * (q - 16)."""
    _put_five_bits(blocks[:, 2:], floats)
    floats -= np.float32(16)
    floats *= blocks[:, 0:2].view(_HALF).astype(np.float32)


def _unpack_q5_1(blocks: Bytes, floats: Floats) -> None:
    """half scale | half minimum | 5-bit numbers as in Q5_0: weight = scale * q + minimum, rounded twice."""
    _put_five_bits(blocks[:, 4:], floats)
    floats *= blocks[:, 0:2].view(_HALF).astype(np.float32)
    floats += blocks[:, 2:4].view(_HALF).astype(np.float32)


def _scale_k(blocks: Bytes, groups: Floats) -> None:
    """Numbers of Q4_K and Q5_K, [n, 8, 32], become weights: (d * scale) * q - (d_min * minimum), each step rounded.

    half d | half d_min | 12 bytes: scales 0-3, minima 0-3 and, in nibbles, low parts of scales and minima 4-7 take four
    each; the first eight lend their two upper bits to the others.
    """
    scales, minima, low = (blocks[:, 4 + at : 8 + at] for at in (0, 4, 8))
    upper = np.uint8(0x30)
    six_bits = np.uint8(0x3F)
    scales = np.concatenate([scales & six_bits, low & _NIBBLE | scales >> np.uint8(2) & upper], axis=1)
    minima = np.concatenate([minima & six_bits, low >> _FOUR | minima >> np.uint8(2) & upper], axis=1)
    d, d_min = (blocks[:, at : at + 2].view(_HALF).astype(np.float32) for at in (0, 2))
    groups *= (d * scales)[:, :, None]
    groups -= (d_min * minima)[:, :, None]


def _unpack_q4_k(blocks: Bytes, floats: Floats) -> None:
    """scales and minima | 4 times 32 bytes whose low nibbles are one group of 32 weights and high nibbles the next."""
    _put_nibbles(blocks[:, 16:].reshape(-1, 4, 32), floats.reshape(-1, 4, 64))
    _scale_k(blocks, floats.reshape(-1, 8, 32))


def _unpack_q5_k(blocks: Bytes, floats: Floats) -> None:
    """scales and minima | 32 bytes, bit g of byte k being bit 4 of weight k of group g | nibbles as in Q4_K."""
    _put_nibbles(blocks[:, 48:].reshape(-1, 4, 32), floats.reshape(-1, 4, 64))
    groups = floats.reshape(-1, 8, 32)
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    groups += high << _FOUR
    _scale_k(blocks, groups)


def _unpack_q6_k(blocks: Bytes, floats: Floats) -> None:
    """128 bytes of nibbles | 64 bytes of two upper bits | 16 int8 scales | half d: (d * scale) * (q - 32) in sixteens.

    Each half of the weights has 64 and 32 of these bytes: low nibbles are its first 64 weights, high ones the others;
    bits 2 g and 2 g + 1 of byte k belong to weight k of its group g.
    """
    _put_nibbles(blocks[:, :128].reshape(-1, 2, 64), floats.reshape(-1, 2, 128))
    groups = floats.reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    groups += (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)) << _FOUR
    sixteens = floats.reshape(-1, 16, 16)
    sixteens -= np.float32(32)
    d = np.ascontiguousarray(blocks[:, 208:210]).view(_HALF).astype(np.float32)
    sixteens *= (d * blocks[:, 192:208].view(np.int8))[:, :, None]


def _unpack_int8(blocks: Bytes, floats: Floats) -> None:
    """float scale | 32 int8: number = scale * q. Four blocks of a row share the scale; `rounding.py` has the rest."""
    np.multiply(blocks[:, 4:].view(np.int8), blocks[:, 0:4].view("<f4"), out=floats)


F32: Final = WeightFormat("F32", block_weights=1, block_bytes=4, unpack=_unpack_f32)
F16: Final = WeightFormat("F16", block_weights=1, block_bytes=2, unpack=_unpack_f16)
BF16: Final = WeightFormat("BF16", block_weights=1, block_bytes=2, unpack=_unpack_bf16)
Q8_0: Final = WeightFormat("Q8_0", block_weights=32, block_bytes=34, unpack=_unpack_q8_0)
Q4_0: Final = WeightFormat("Q4_0", block_weights=32, block_bytes=18, unpack=_unpack_q4_0)
Q4_1: Final = WeightFormat("Q4_1", block_weights=32, block_bytes=20, unpack=_unpack_q4_1)
Q5_0: Final = WeightFormat("Q5_0", block_weights=32, block_bytes=22, unpack=_unpack_q5_0)
Q5_1: Final = WeightFormat("Q5_1", block_weights=32, block_bytes=24, unpack=_unpack_q5_1)
Q4_K: Final = WeightFormat("Q4_K", block_weights=256, block_bytes=144, unpack=_unpack_q4_k)
Q5_K: Final = WeightFormat("Q5_K", block_weights=256, block_bytes=176, unpack=_unpack_q5_k)
Q6_K: Final = WeightFormat("Q6_K", block_weights=256, block_bytes=210, unpack=_unpack_q6_k)
INT8: Final = WeightFormat("INT8", block_weights=32, block_bytes=36, unpack=_unpack_int8, repeated_bytes=3)
"""Our own: no file has it, weights are rounded to it when a model is loaded."""

ALL_FORMATS: Final[tuple[WeightFormat, ...]] = (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K)
