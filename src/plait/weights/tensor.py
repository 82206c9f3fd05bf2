"""A tensor: named rows of weights in some format, usually still in the mapped file.

Owns reading rows, raw or as floats, in our row order, rounded to another format on the way where that is wanted. Knows
nothing about files or architectures.
Invariant: a row is whole blocks, so reordering rows moves bytes and never changes a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.core.errors import InvariantError
from plait.weights.formats import Bytes, Floats, WeightFormat
from plait.weights.rounding import check_can_round, restored, rounded


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`shape` is row-major; its first dimension counts rows, and a one-dimensional tensor has rows of one weight."""

    name: str
    shape: tuple[int, ...]
    format: WeightFormat
    """Of the rows that are read."""
    stored: Bytes
    """[num_rows, row_bytes] as they lie in the file, read-only."""
    row_order: npt.NDArray[np.intp] | None = None
    """Stored row of each of our rows; None when they are the same. Applied when rows are read: mapped bytes stay so."""
    rounded_from: WeightFormat | None = None
    """The format of `stored`, where that is another one: rows are rounded whenever they are read."""
    made: Callable[[int, int], Bytes] | None = None
    """Gives stored rows [first, stop), where the file has their numbers in another order; `stored` is then any part of
    the file that they are read from.
    """

    def __post_init__(self) -> None:
        if self.rounded_from is not None:
            check_can_round(self.format)
        if self.made is not None:
            return
        expected = (self.num_rows, self._stored_format.bytes_of(self._width))
        if self.stored.shape != expected or (self.row_order is not None and self.row_order.shape != expected[:1]):
            raise InvariantError(
                f"tensor {self.name} of shape {self.shape} stores {self.stored.shape} bytes, not {expected}"
            )

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def num_weights(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in its format, scales included."""
        return round(self.num_weights * self.format.bits_per_weight / 8)

    def raw(self, start: int = 0, stop: int | None = None) -> Bytes:
        """Rows [start, stop) as blocks, [rows, row_bytes]: a view of the file, or a copy where rows are reordered or
        rounded.
        """
        stop = self.num_rows if stop is None else stop
        if not 0 <= start <= stop <= self.num_rows:
            raise InvariantError(f"rows {start} to {stop} of tensor {self.name}, which has {self.num_rows}")
        if self.rounded_from is None:
            return self._stored_rows(start, stop)
        return self._rounded(stop - start, lambda first, end: self._stored_rows(start + first, start + end))

    def dequantize(self, start: int = 0, stop: int | None = None) -> Floats:
        """Rows [start, stop) as a fresh float32 array [rows, *shape[1:]]."""
        return self._as_floats(self.raw(start, stop))

    def dequantize_rows(self, rows: npt.NDArray[np.integer]) -> Floats:
        """The named rows in that order, repeats allowed, as float32 [len(rows), *shape[1:]]: an embedding look-up."""
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < self.num_rows:
            raise InvariantError(
                f"rows {int(rows.min())} to {int(rows.max())} of tensor {self.name}, which has {self.num_rows}"
            )
        if self.made is not None:
            raise InvariantError(f"tensor {self.name} is made as it is read, and no table to look rows up in")
        stored_rows = rows if self.row_order is None else self.row_order[rows]
        if self.rounded_from is None:
            return self._as_floats(self.stored[stored_rows])
        return self._as_floats(self._rounded(len(rows), lambda first, end: self.stored[stored_rows[first:end]]))

    @property
    def _width(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def _stored_format(self) -> WeightFormat:
        return self.format if self.rounded_from is None else self.rounded_from

    def _stored_rows(self, start: int, stop: int) -> Bytes:
        if self.made is not None:
            return self.made(start, stop)
        return self.stored[start:stop] if self.row_order is None else self.stored[self.row_order[start:stop]]

    def _rounded(self, num_rows: int, stored_rows: Callable[[int, int], Bytes]) -> Bytes:
        def read(start: int, stop: int) -> Floats:
            return self._stored_format.dequantize(stored_rows(start, stop)).reshape(stop - start, self._width)

        return rounded(num_rows, self._width, read, self.format)

    def _as_floats(self, raw: Bytes) -> Floats:
        floats = self.format.dequantize(raw)
        if self.rounded_from is not None:
            floats = restored(floats.reshape(len(raw), self._width), self.format)
        return floats.reshape(len(raw), *self.shape[1:])
