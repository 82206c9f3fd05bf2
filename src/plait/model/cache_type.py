"""Cache types: what a number in the cache is, and what a key or a value of one token takes.

Owns names and sizes; csrc/ops/cache_layout.h is its twin and says where the parts lie. Knows nothing about blocks.
Invariant: a type's bytes are those that the native runtime writes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

_STEP: Final = 16
_SCALE_BYTES: Final = 4


class CacheType(StrEnum):
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    INT8 = "int8"
    """8 bits and one f32 scale for each token and head; widths in whole sixteens."""

    @property
    def number_bytes(self) -> int:
        return _NUMBER_BYTES[self]

    def vector_bytes(self, width: int) -> int:
        """Of a key or a value of one token, one layer and one KV head, its scale included; no vector takes nothing."""
        if self is not CacheType.INT8 or width == 0:
            return width * self.number_bytes
        return -(-width // _STEP) * _STEP + _SCALE_BYTES


_NUMBER_BYTES: Final = {CacheType.F32: 4, CacheType.F16: 2, CacheType.BF16: 2, CacheType.INT8: 1}
INT8_TOKENS: Final = 16
"""Tokens of a block of `INT8` come in whole multiples of this."""
