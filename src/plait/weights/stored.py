"""Stored tensors: what a checkpoint's readers say about each tensor, whatever the file format.

Owns no bytes: they stay in the mapped file. Knows neither file layouts nor architectures.
Invariant: `mapped` holds exactly `num_bytes` bytes, whole blocks of `format` for every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plait.weights.formats import Bytes, WeightFormat


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """One tensor of a file. `shape` is row-major, outermost dimension first."""

    name: str
    """As the file calls it."""
    shape: tuple[int, ...]
    format: WeightFormat
    offset: int
    """First byte, counted from the start of the file."""
    num_bytes: int
    mapped: Bytes
    """The tensor's bytes in the mapped file, read-only."""
    made: Callable[[int, int], Bytes] | None = None
    """Gives rows [first, stop) as blocks, where they do not lie in the file as such. `mapped` is what they are of."""

    def raw(self) -> Bytes:
        """The tensor's bytes as they lie in the file: a read-only view, paged in when touched."""
        return self.mapped
