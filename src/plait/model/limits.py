"""Limits: between what bounds the numbers of a model file lie.

Owns the bounds: far beyond any model, so that only a damaged or hostile file meets them, and no product of sizes grows
without end.
"""

from __future__ import annotations

import struct

MAX_LAYERS = 10_000
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24
MAX_POSITIONS = 1 << 24
MAX_THETA = 1e12
MIN_EPS = 1e-30
MIN_SCALING, MAX_SCALING = 1e-6, 1e6
"""Of factors and multipliers; the lower bound is not one of them."""


def as_float32(number: float) -> float:
    """The nearest float32: GGUF stores its numbers as such, so that all readers give the same config for one model."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])
