"""A tensor: named rows of weights in some format, usually still in the mapped file.

Owns reading rows, raw or as floats, in our row order. Knows nothing about files or architectures.
Invariant: a row is whole blocks, so reordering rows moves bytes and never changes a weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.core.errors import InvariantError
from plait.weights.formats import Bytes, Floats, WeightFormat


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`shape` is row-major; its first dimension counts rows, and a one-dimensional tensor has rows of one weight."""

    name: str
    shape: tuple[int, ...]
    format: WeightFormat
    stored: Bytes
    """[num_rows, row_bytes] as they lie in the file, read-only."""
    row_order: npt.NDArray[np.intp] | None = None
    """Stored row of each of our rows; None when they are the same. Applied when rows are read: mapped bytes stay so."""

    def __post_init__(self) -> None:
        expected = (self.num_rows, self.format.bytes_of(math.prod(self.shape[1:])))
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
        return self.stored.size

    def raw(self, start: int = 0, stop: int | None = None) -> Bytes:
        """Rows [start, stop) as blocks, [rows, row_bytes]: a view of the file, or a copy where rows are reordered."""
        stop = self.num_rows if stop is None else stop
        if not 0 <= start <= stop <= self.num_rows:
            raise InvariantError(f"rows {start} to {stop} of tensor {self.name}, which has {self.num_rows}")
        if self.row_order is None:
            return self.stored[start:stop]
        return self.stored[self.row_order[start:stop]]

    def dequantize(self, start: int = 0, stop: int | None = None) -> Floats:
        """Rows [start, stop) as a fresh float32 array [rows, *shape[1:]]."""
        raw = self.raw(start, stop)
        return self.format.dequantize(raw).reshape(len(raw), *self.shape[1:])

    def dequantize_rows(self, rows: npt.NDArray[np.integer]) -> Floats:
        """The named rows in that order, repeats allowed, as float32 [len(rows), *shape[1:]]: an embedding look-up."""
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < self.num_rows:
            raise InvariantError(
                f"rows {int(rows.min())} to {int(rows.max())} of tensor {self.name}, which has {self.num_rows}"
            )
        stored_rows = rows if self.row_order is None else self.row_order[rows]
        return self.format.dequantize(self.stored[stored_rows]).reshape(len(rows), *self.shape[1:])
