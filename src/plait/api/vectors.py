"""Vectors: embeddings as JSON holds them.

Owns length and spelling: numbers, or base64 of 32-bit floats, lowest byte first, which is what SDKs ask for.
"""

from __future__ import annotations

import array
import base64
import math
import sys
from dataclasses import dataclass

from plait.api.bodies import JsonValue


@dataclass(frozen=True, slots=True)
class VectorForm:
    """How vectors are told. `dimensions` None: all of them."""

    is_base64: bool
    dimensions: int | None
    normalizes: bool

    def told(self, pooled: tuple[float, ...]) -> JsonValue:
        vector = list(pooled[: self.dimensions])
        if self.normalizes:
            # Also after it was shortened, which is what makes a part of a vector comparable.
            length = math.sqrt(math.fsum(number * number for number in vector))
            vector = [number / length for number in vector] if length else vector
        if not self.is_base64:
            return list[JsonValue](vector)
        numbers = array.array("f", vector)
        if sys.byteorder == "big":
            numbers.byteswap()
        return base64.b64encode(numbers.tobytes()).decode()
