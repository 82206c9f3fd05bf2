"""Block bits: what the readers of weight blocks share.

Owns the array types and how nibbles, pairs of bits and halves become numbers. Knows no format.
Invariant: nothing is rounded here.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]
Numbers: TypeAlias = npt.NDArray[np.int8]

HALF: Final = np.dtype("<f2")
NIBBLE: Final = np.uint8(0x0F)
FOUR: Final = np.uint8(4)


def halves(blocks: Bytes, at: int) -> Floats:
    """The half that begins at byte `at` of every block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(HALF).astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """[..., bytes] becomes [..., 2 * bytes]: all low nibbles, then all high ones."""
    return np.concatenate([packed & NIBBLE, packed >> FOUR], axis=-1)


def put_nibbles(packed: Bytes, floats: Floats) -> None:
    """Low nibbles are the first half of the weights, high nibbles the second."""
    half = packed.shape[-1]
    np.bitwise_and(packed, NIBBLE, out=floats[..., :half], casting="unsafe")
    np.right_shift(packed, FOUR, out=floats[..., half:], casting="unsafe")


def bit_pairs(packed: Bytes) -> Bytes:
    """[n, bytes] becomes [n, bytes / 32, 4, 32]: bits 2 g and 2 g + 1 of byte k belong to weight k of group g."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return packed.reshape(len(packed), -1, 1, 32) >> shifts & np.uint8(3)


def bits(packed: Bytes) -> Bytes:
    """[n, bytes] becomes [n, 8 * bytes], lowest bit first."""
    return np.unpackbits(packed, axis=1, bitorder="little")
