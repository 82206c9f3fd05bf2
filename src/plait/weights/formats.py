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


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """`block_weights` neighbouring weights of a row share `block_bytes` bytes, scales included."""

    name: str
    block_weights: int
    block_bytes: int
    unpack: Callable[[Bytes, Floats], None]
    """Writes blocks [n, block_bytes] as floats into [n, block_weights]."""

    @property
    def bits_per_weight(self) -> float:
        """Bits that one weight costs in memory, its part of scales and minima included."""
        return 8 * self.block_bytes / self.block_weights

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


F32: Final = WeightFormat("F32", block_weights=1, block_bytes=4, unpack=_unpack_f32)
F16: Final = WeightFormat("F16", block_weights=1, block_bytes=2, unpack=_unpack_f16)
BF16: Final = WeightFormat("BF16", block_weights=1, block_bytes=2, unpack=_unpack_bf16)
Q8_0: Final = WeightFormat("Q8_0", block_weights=32, block_bytes=34, unpack=_unpack_q8_0)
Q4_0: Final = WeightFormat("Q4_0", block_weights=32, block_bytes=18, unpack=_unpack_q4_0)
Q4_1: Final = WeightFormat("Q4_1", block_weights=32, block_bytes=20, unpack=_unpack_q4_1)

ALL_FORMATS: Final[tuple[WeightFormat, ...]] = (F32, F16, BF16, Q8_0, Q4_0, Q4_1)
