"""GGUF outlines: what the header of a file says, whether or not the tensors behind it are there or can be used.

Owns the sizes of every tensor type that the format knows, supported here or not. Maps no tensor: a download that has
only begun is enough.
Invariant: an outline agrees with `plait.weights.gguf` wherever that reads the file too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from plait.core.errors import ModelError
from plait.weights.gguf import (
    FORMAT_OF_TYPE,
    MAX_DIMENSIONS,
    MAX_METADATA_KEYS,
    MAX_TENSORS,
    read_count,
    read_metadata,
    read_version,
)
from plait.weights.gguf_header import HeaderCursor, MetaValue, shown
from plait.weights.mapping import map_file

# Type number -> name, weights of a block, bytes of a block. Types of intermediate results, which no file holds, aside.
_TYPES: Final = MappingProxyType(
    {number: (one.name.lower(), one.block_weights, one.block_bytes) for number, one in FORMAT_OF_TYPE.items()}
    | {24: ("i8", 1, 1), 25: ("i16", 1, 2), 26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8)}
    | {41: ("q1_0", 128, 18)}
)


@dataclass(frozen=True, slots=True)
class TensorOutline:
    name: str
    shape: tuple[int, ...]
    """Row-major, outermost dimension first."""
    format: str
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufOutline:
    metadata: dict[str, MetaValue]
    tensors: tuple[TensorOutline, ...]


def read_outline(path: Path) -> GgufOutline:
    """The header of a GGUF file, and nothing behind it; `ModelError` if the header is not whole."""
    mapped = map_file(path, "a .gguf file")
    cursor = HeaderCursor(path, mapped)
    read_version(cursor, path, mapped)
    num_tensors = read_count(cursor, "number of tensors", MAX_TENSORS)
    metadata = read_metadata(cursor, read_count(cursor, "number of metadata keys", MAX_METADATA_KEYS))
    return GgufOutline(metadata, tuple(_tensor(cursor, path, place) for place in range(num_tensors)))


def _tensor(cursor: HeaderCursor, path: Path, place: int) -> TensorOutline:
    name = cursor.string(f"name of tensor {place}")
    what = f"tensor {shown(name)}"
    num_dimensions = cursor.u32(f"number of dimensions of {what}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.damaged(f"{what} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.u64(f"dimension of {what}") for _ in range(num_dimensions))[::-1]
    number = cursor.u32(f"type of {what}")
    cursor.u64(f"offset of {what}")
    if number not in _TYPES:
        raise ModelError(f"{path}: {what} has type {number}, which is not known; use a file of another format")
    name_of_type, block_weights, block_bytes = _TYPES[number]
    num_bytes = math.prod(shape[:-1]) * -(-shape[-1] // block_weights) * block_bytes
    return TensorOutline(name, shape, name_of_type, num_bytes)
