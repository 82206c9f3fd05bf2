"""Rope tables of the native executor: cosines and sines, the same bits on every machine.

Owns their arithmetic: sums and products of doubles alone, which every processor rounds alike. Those of a C library or
of NumPy differ in the last bit from one machine to the next, and so would answers under one fingerprint.
Invariant: an entry depends on its position, its frequency and mscale alone.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial, floor
from typing import Final

import numpy as np
import numpy.typing as npt

from plait.exec.native.tape import RopeUse
from plait.model.rope import frequencies

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

_HALF_PI: Final = Fraction("1.57079632679489661923132169163975144209858469968755291048747229615")
_PART_BITS: Final = 33
"""Bits of a part of pi / 2: a whole number of up to 20 bits, times a part, is exact in a double."""
_MAX_POWER: Final = 20
"""Terms behind it are below 2^-60 on [-pi/4, pi/4]."""


def tables(use: RopeUse, num_positions: int) -> tuple[Floats, Floats]:
    """Cosines and sines [num_positions, rotary_dim / 2], mscale included, rounded to float32 once."""
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * np.asarray(frequencies(use.spec))
    cosines, sines = cos_sin(angles)
    return (cosines * use.mscale).astype(np.float32), (sines * use.mscale).astype(np.float32)


def cos_sin(angles: Doubles) -> tuple[Doubles, Doubles]:
    """Of angles from 0 to 1.6 million: about one unit in the last place."""
    quarters = np.rint(angles * float(1 / _HALF_PI))
    rest = angles
    for part in _half_pi_parts():
        rest = rest - quarters * part
    cosine, sine = _series(rest, 0), _series(rest, 1)
    quarter = quarters.astype(np.int64) % 4
    swapped = quarter % 2 == 1
    turned_cosine = np.where(swapped, sine, cosine)
    turned_sine = np.where(swapped, cosine, sine)
    return (
        np.where((quarter == 1) | (quarter == 2), -turned_cosine, turned_cosine),
        np.where(quarter >= 2, -turned_sine, turned_sine),
    )


def _half_pi_parts() -> list[float]:
    parts: list[float] = []
    left = _HALF_PI
    for place in range(1, 4):
        unit = Fraction(1, 2 ** (_PART_BITS * place - 1))
        part = floor(left / unit) * unit
        parts.append(float(part))
        left -= part
    return parts


def _series(x: Doubles, first: int) -> Doubles:
    """Taylor's series of the cosine (`first` 0) or the sine (1), the smallest term first."""
    square = x * x
    total = np.zeros_like(x)
    for power in range(_MAX_POWER + first, first, -2):
        sign = -1.0 if power // 2 % 2 else 1.0
        total = (total + sign / factorial(power)) * square
    total = total + 1.0
    return total * x if first else total
