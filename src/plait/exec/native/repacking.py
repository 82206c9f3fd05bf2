"""Repacking: rows of formats that kernels do not know become rows of a scheme that they do, without being rounded.

Owns which scheme stands for which format, and how its stored blocks are written; what they look like is said in
csrc/formats/blocks.h. All formats here are scales times 8-bit numbers (`WeightFormat.split`).
Invariant: every weight keeps its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from plait.exec.native.tape import Scheme
from plait.weights.block_bits import FOUR, Bytes, Floats, Numbers
from plait.weights.blocks_table import IQ4_NUMBERS
from plait.weights.formats import WeightFormat

GROUP: Final = 32

_NAMED: Final[Mapping[str, Scheme]] = {scheme.name: scheme for scheme in Scheme}
_STANDS_FOR: Final[Mapping[str, Scheme]] = {
    "IQ4_NL": Scheme.IQ4,
    "IQ4_XS": Scheme.IQ4,
    "TQ1_0": Scheme.Q4_0,
    "TQ2_0": Scheme.Q4_0,
}
BITS: Final[Mapping[Scheme, float]] = {
    Scheme.Q2_K: 5.125,
    Scheme.Q3_K: 4.5625,
    Scheme.Q4_0: 4.5,
    Scheme.IQ4: 5.0,
    Scheme.Q8_16: 10.0,
}
"""Of a packed weight, where that is much more than in some format that becomes it."""


def scheme_of(weight_format: WeightFormat) -> Scheme:
    """The scheme that a format is multiplied in: its own, or the smallest that holds it exactly."""
    own = _NAMED.get(weight_format.name)
    return own if own is not None else _STANDS_FOR.get(weight_format.name, Scheme.Q8_16)


def repacked(rows: Bytes, weight_format: WeightFormat, scheme: Scheme) -> Bytes:
    """Rows [n, bytes] of a format as rows of the scheme that stands for it."""
    assert weight_format.split is not None
    blocks = np.ascontiguousarray(rows).reshape(-1, weight_format.block_bytes)
    # A file may hold NaN or infinite scales; they stay what they are.
    with np.errstate(invalid="ignore", over="ignore"):
        scales, numbers = weight_format.split(blocks)
        stored = _WRITERS[scheme](scales.reshape(-1, GROUP // 16), numbers.reshape(-1, GROUP))
    return stored.reshape(len(rows), -1)


def _q4_0(scales: Floats, numbers: Numbers) -> Bytes:
    """Only for scales that are halves, the same for both sixteens, and numbers from -8 to 7."""
    codes = (numbers + np.int8(8)).view(np.uint8)
    return np.concatenate([scales[:, :1].astype("<f2").view(np.uint8), _nibbles(codes)], axis=1)


def _iq4(scales: Floats, numbers: Numbers) -> Bytes:
    """Only for numbers of the table, with the same scale for both sixteens."""
    codes = _PLACE_IN_TABLE[numbers.view(np.uint8)]
    return np.concatenate([np.ascontiguousarray(scales[:, :1], "<f4").view(np.uint8), _nibbles(codes)], axis=1)


def _q8_16(scales: Floats, numbers: Numbers) -> Bytes:
    return np.concatenate([np.ascontiguousarray(scales, "<f4").view(np.uint8), numbers.view(np.uint8)], axis=1)


def _nibbles(codes: Bytes) -> Bytes:
    return codes[:, : GROUP // 2] | codes[:, GROUP // 2 :] << FOUR


def _places() -> Bytes:
    """Of the table's numbers, by the byte that each of them is."""
    places = np.zeros(256, np.uint8)
    places[IQ4_NUMBERS.view(np.uint8)] = np.arange(len(IQ4_NUMBERS), dtype=np.uint8)
    return places


_PLACE_IN_TABLE: Final = _places()
_WRITERS: Final[Mapping[Scheme, Callable[[Floats, Numbers], Bytes]]] = {
    Scheme.Q4_0: _q4_0,
    Scheme.IQ4: _iq4,
    Scheme.Q8_16: _q8_16,
}
