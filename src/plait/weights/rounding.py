"""Rounding: float weights become weights of a format with fewer bits, while a model is loaded.

Owns how each number is chosen; what the numbers mean is in `formats.py`. Rows that go into INT8 are mixed first
(docs/adr/0006-number-schemes.md), as csrc/formats/mixing.h says it.
Invariant: additions, subtractions, products, quotients and roundings of single numbers in a fixed order, so that every
machine gives the same bytes; a row's bytes depend on that row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from plait.core.errors import InvariantError
from plait.weights.formats import INT8, Q4_1, Bytes, Floats, WeightFormat

WIDE_GROUP: Final = 128
"""Numbers that share a scale in INT8; the last group of a row may be shorter."""
LEAST_DISTANCE: Final = 8
_LEAST_MAXIMUM: Final = np.float32(2.0**-100)
"""A group whose largest magnitude is below this is zero."""
_PIECE: Final = 1 << 18
"""Weights that are rounded at a time: as many as a core's caches hold."""


def rounded(rows: int, width: int, read: Callable[[int, int], Floats], to: WeightFormat) -> Bytes:
    """[rows, bytes]: the rows that `read` gives for a range of them, piece by piece, in the format `to`."""
    result = np.empty((rows, to.bytes_of(width)), np.uint8)
    step = max(1, _PIECE // width)
    # NaN and infinite weights become NaN scales; that is the numbers' business, not a warning on stderr.
    with np.errstate(all="ignore"):
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            _ROUNDERS[to.name](read(start, stop), result[start:stop])
    return result


def restored(floats: Floats, of: WeightFormat) -> Floats:
    """Weights [rows, width] from the numbers that a format's bytes mean; in place where they are mixed."""
    if of is not INT8:
        return floats
    columns = np.ascontiguousarray(floats.T)
    for first, size in _groups(len(columns)):
        _mix(columns[first : first + size])
    floats[...] = columns.T
    return floats


def _groups(width: int) -> Iterator[tuple[int, int]]:
    for first in range(0, width, WIDE_GROUP):
        yield first, min(WIDE_GROUP, width - first)


def _mix(group: Floats) -> int:
    """Sums and differences of rows at distance 8, 16, ... while pairs of them fill the group, in place.

    Done twice it multiplies by what is returned.
    """
    distance = LEAST_DISTANCE
    while len(group) % (2 * distance) == 0:
        pairs = group.reshape(-1, 2, distance, group.shape[1])
        total = pairs[:, 0] + pairs[:, 1]
        np.subtract(pairs[:, 0], pairs[:, 1], out=pairs[:, 1])
        pairs[:, 0] = total
        distance *= 2
    return distance // LEAST_DISTANCE


def _round_int8(floats: Floats, result: Bytes) -> None:
    """Per group, mixed: scale = largest / 127, q = round(w * (127 / largest)), ties to even."""
    blocks = result.reshape(len(floats), -1, INT8.block_bytes)
    # The rows of a group lie beside each other, so that its numbers are combined in long vectors.
    columns = np.ascontiguousarray(floats.T)
    for first, size in _groups(len(columns)):
        group = columns[first : first + size]
        factor = _mix(group)
        largest = np.maximum(group.max(axis=0), -group.min(axis=0))
        finite = np.isfinite(largest)
        if not finite.all():
            group[:, ~finite] = 0
        used = finite & (largest >= _LEAST_MAXIMUM)
        group *= np.where(used, np.float32(127) / largest, np.float32(0))
        np.rint(group, out=group)
        scale = np.where(used, largest / np.float32(127) / np.float32(factor), np.where(finite, 0, np.nan))
        part = blocks[:, first // 32 : (first + size) // 32]
        part[:, :, :4] = scale.astype("<f4").view(np.uint8).reshape(-1, 1, 4)
        part[:, :, 4:] = group.astype(np.int8).view(np.uint8).T.reshape(len(floats), -1, 32)


def _round_q4_1(floats: Floats, result: Bytes) -> None:
    """Per 32: minimum and scale = (largest - minimum) / 15 as halves, q = round((w - minimum) / scale) in 0 .. 15."""
    blocks = result.reshape(-1, Q4_1.block_bytes)
    groups = floats.reshape(-1, Q4_1.block_weights)
    low = groups.min(axis=1, keepdims=True).astype("<f2")
    high = groups.max(axis=1, keepdims=True)
    minimum = low.astype(np.float32)
    half = ((high - minimum) / np.float32(15)).astype("<f2")
    scale = half.astype(np.float32)
    numbers = np.where(scale > 0, (groups - minimum) / scale, np.float32(0))
    codes = np.clip(np.rint(numbers), 0, 15)
    codes[np.isnan(codes)] = 0
    packed = codes.astype(np.uint8)
    blocks[:, 0:2] = half.view(np.uint8)
    blocks[:, 2:4] = low.view(np.uint8)
    blocks[:, 4:] = packed[:, :16] | packed[:, 16:] << np.uint8(4)


_ROUNDERS: Final[Mapping[str, Callable[[Floats, Bytes], None]]] = {"INT8": _round_int8, "Q4_1": _round_q4_1}


def check_can_round(to: WeightFormat) -> None:
    if to.name not in _ROUNDERS:
        raise InvariantError(f"nothing is rounded to {to.name}, only to {', '.join(_ROUNDERS)}")
