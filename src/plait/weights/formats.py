"""Weight formats: how weights lie in bytes.

Owns the name and the block geometry of every supported format and its dequantisation to float32, which native kernels
are checked against; what the bytes of a block mean is in `blocks_*.py`. Knows nothing about files or tensor names.
Invariant: dequantisation is elementwise over blocks, so any split into whole blocks gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from plait.core.errors import InvariantError
from plait.weights import block_bits, blocks_grid, blocks_k, blocks_plain, blocks_table
from plait.weights.blocks_table import Parts

Bytes: TypeAlias = block_bits.Bytes
Floats: TypeAlias = block_bits.Floats
Unpack: TypeAlias = Callable[[Bytes, Floats], None]
Split: TypeAlias = Callable[[Bytes], Parts]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """`block_weights` neighbouring weights of a row share `block_bytes` bytes, scales included."""

    name: str
    block_weights: int
    block_bytes: int
    unpack: Unpack
    """Writes blocks [n, block_bytes] as floats into [n, block_weights]."""
    split: Split | None = None
    """Takes blocks [n, block_bytes] apart into scales of sixteen weights and 8-bit numbers, whose products are exactly
    what `unpack` gives; None where that is not how the format is meant.
    """
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


def _in_parts(name: str, block_weights: int, block_bytes: int, split: Split) -> WeightFormat:
    """A format whose weights are scales times numbers."""

    def unpack(blocks: Bytes, floats: Floats) -> None:
        scales, numbers = split(blocks)
        np.multiply(numbers.reshape(-1, 16), scales.reshape(-1, 1), out=floats.reshape(-1, 16))

    return WeightFormat(name, block_weights, block_bytes, unpack, split)


F32: Final = WeightFormat("F32", block_weights=1, block_bytes=4, unpack=blocks_plain.unpack_f32)
F16: Final = WeightFormat("F16", block_weights=1, block_bytes=2, unpack=blocks_plain.unpack_f16)
BF16: Final = WeightFormat("BF16", block_weights=1, block_bytes=2, unpack=blocks_plain.unpack_bf16)
Q8_0: Final = WeightFormat("Q8_0", block_weights=32, block_bytes=34, unpack=blocks_plain.unpack_q8_0)
Q4_0: Final = WeightFormat("Q4_0", block_weights=32, block_bytes=18, unpack=blocks_plain.unpack_q4_0)
Q4_1: Final = WeightFormat("Q4_1", block_weights=32, block_bytes=20, unpack=blocks_plain.unpack_q4_1)
Q5_0: Final = WeightFormat("Q5_0", block_weights=32, block_bytes=22, unpack=blocks_plain.unpack_q5_0)
Q5_1: Final = WeightFormat("Q5_1", block_weights=32, block_bytes=24, unpack=blocks_plain.unpack_q5_1)
Q2_K: Final = WeightFormat("Q2_K", block_weights=256, block_bytes=84, unpack=blocks_k.unpack_q2_k)
Q3_K: Final = WeightFormat("Q3_K", block_weights=256, block_bytes=110, unpack=blocks_k.unpack_q3_k)
Q4_K: Final = WeightFormat("Q4_K", block_weights=256, block_bytes=144, unpack=blocks_k.unpack_q4_k)
Q5_K: Final = WeightFormat("Q5_K", block_weights=256, block_bytes=176, unpack=blocks_k.unpack_q5_k)
Q6_K: Final = WeightFormat("Q6_K", block_weights=256, block_bytes=210, unpack=blocks_k.unpack_q6_k)
IQ4_NL: Final = _in_parts("IQ4_NL", 32, 18, blocks_table.iq4_nl_parts)
IQ4_XS: Final = _in_parts("IQ4_XS", 256, 136, blocks_table.iq4_xs_parts)
MXFP4: Final = _in_parts("MXFP4", 32, 17, blocks_table.mxfp4_parts)
NVFP4: Final = _in_parts("NVFP4", 64, 36, blocks_table.nvfp4_parts)
TQ1_0: Final = _in_parts("TQ1_0", 256, 54, blocks_table.tq1_0_parts)
TQ2_0: Final = _in_parts("TQ2_0", 256, 66, blocks_table.tq2_0_parts)
IQ1_S: Final = _in_parts("IQ1_S", 256, 50, blocks_grid.iq1_s_parts)
IQ1_M: Final = _in_parts("IQ1_M", 256, 56, blocks_grid.iq1_m_parts)
IQ2_XXS: Final = _in_parts("IQ2_XXS", 256, 66, blocks_grid.iq2_xxs_parts)
IQ2_XS: Final = _in_parts("IQ2_XS", 256, 74, blocks_grid.iq2_xs_parts)
IQ2_S: Final = _in_parts("IQ2_S", 256, 82, blocks_grid.iq2_s_parts)
IQ3_XXS: Final = _in_parts("IQ3_XXS", 256, 98, blocks_grid.iq3_xxs_parts)
IQ3_S: Final = _in_parts("IQ3_S", 256, 110, blocks_grid.iq3_s_parts)
INT8: Final = WeightFormat("INT8", block_weights=32, block_bytes=36, unpack=blocks_plain.unpack_int8, repeated_bytes=3)
"""Our own: no file has it, weights are rounded to it when a model is loaded."""

BYTE: Final = WeightFormat("U8", block_weights=1, block_bytes=1, unpack=blocks_plain.unpack_byte)
"""Of a checkpoint that keeps 4-bit codes and their scales in tensors apart; together they are MXFP4."""

ALL_FORMATS: Final[tuple[WeightFormat, ...]] = (
    *(F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
    *(IQ4_NL, IQ4_XS, MXFP4, NVFP4, TQ1_0, TQ2_0, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S),
)
