"""GGUF files: metadata and a table of memory-mapped tensors.

Owns the layout of GGUF versions 2 and 3 (little-endian) and its tensor types. Copies no tensor, knows no architecture.
Invariant: a `GgufFile` that exists is sound: every tensor has a supported format and lies whole, aligned and alone in
the file.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from plait.core.errors import ModelError
from plait.weights import formats
from plait.weights.formats import Bytes, WeightFormat
from plait.weights.gguf_header import HeaderCursor, MetaValue, shown
from plait.weights.mapping import map_file
from plait.weights.stored import StoredTensor

SUPPORTED_VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_DIMENSIONS: Final = 4
MAX_TENSORS: Final = 65_536
MAX_METADATA_KEYS: Final = 65_536

FORMAT_OF_TYPE: Final = MappingProxyType(
    {0: formats.F32, 1: formats.F16, 2: formats.Q4_0, 3: formats.Q4_1, 6: formats.Q5_0, 7: formats.Q5_1}
    | {8: formats.Q8_0, 12: formats.Q4_K, 13: formats.Q5_K, 14: formats.Q6_K, 30: formats.BF16}
)
# Types that exist but are not supported, so that a message can say what the file holds.
_OTHER_TYPES: Final = MappingProxyType(
    {9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K"}
    | {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS"}
    | {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
)
# Fewest bytes of one entry. Key: its length, value type, value. Tensor: name length, rank, one dimension, type, offset.
_LEAST_KEY_BYTES: Final = 8 + 4 + 1
_LEAST_TENSOR_BYTES: Final = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A sound GGUF file. The mapping lives as long as any tensor's bytes are referred to."""

    path: Path
    version: int
    num_bytes: int
    alignment: int
    metadata: dict[str, MetaValue]
    tensors: dict[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as the header describes it, before its bytes are known to be there."""

    name: str
    shape: tuple[int, ...]
    format: WeightFormat
    offset: int
    num_bytes: int


def read_gguf(path: Path | str) -> GgufFile:
    """Read the header of a GGUF file and map its tensors; `ModelError` if the file is anything but sound."""
    path = Path(path)
    mapped = map_file(path, "a .gguf file")
    cursor = HeaderCursor(path, mapped)
    version = _read_version(cursor, path, mapped)
    num_tensors = _read_count(cursor, "number of tensors", MAX_TENSORS)
    num_keys = _read_count(cursor, "number of metadata keys", MAX_METADATA_KEYS)
    cursor.need(num_keys * _LEAST_KEY_BYTES + num_tensors * _LEAST_TENSOR_BYTES, "the header")
    metadata = _read_metadata(cursor, num_keys)
    alignment = _alignment_of(metadata, cursor)
    entries = _read_entries(cursor, path, num_tensors)
    start = -(-cursor.position // alignment) * alignment
    _check_places(cursor, entries, start, len(mapped), alignment)
    tensors = _tensors_of(entries, start, np.frombuffer(mapped, dtype=np.uint8))
    return GgufFile(path, version, len(mapped), alignment, metadata, tensors)


def _read_version(cursor: HeaderCursor, path: Path, mapped: mmap.mmap) -> int:
    magic = mapped[:4]
    if magic != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file (it begins with {magic!r}, not b'GGUF'); give a .gguf model file")
    cursor.position = 4
    version = cursor.u32("format version")
    if version in SUPPORTED_VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *SUPPORTED_VERSIONS):
        raise ModelError(f"{path}: a big-endian GGUF file (version {swapped}); convert it to little-endian")
    raise ModelError(f"{path}: GGUF version {version} is not supported, only 2 and 3; convert the model again")


def _read_count(cursor: HeaderCursor, what: str, limit: int) -> int:
    count = cursor.u64(what)
    if count > limit:
        raise cursor.damaged(f"{what} is {count:,}; the limit is {limit:,}")
    return count


def _read_metadata(cursor: HeaderCursor, num_keys: int) -> dict[str, MetaValue]:
    metadata: dict[str, MetaValue] = {}
    for index in range(num_keys):
        key = cursor.string(f"name of metadata key {index}")
        if key in metadata:
            raise cursor.damaged(f"metadata key {shown(key)} appears twice")
        metadata[key] = cursor.value(f"metadata {shown(key)}")
    return metadata


def _alignment_of(metadata: dict[str, MetaValue], cursor: HeaderCursor) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1):
        raise cursor.damaged(f"general.alignment is {shown(str(value))}; it must be a power of two")
    return value


def _read_entries(cursor: HeaderCursor, path: Path, num_tensors: int) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for index in range(num_tensors):
        name = cursor.string(f"name of tensor {index}")
        if name in entries:
            raise cursor.damaged(f"tensor {shown(name)} appears twice")
        entries[name] = _read_entry(cursor, path, name)
    return list(entries.values())


def _read_entry(cursor: HeaderCursor, path: Path, name: str) -> _Entry:
    what = f"tensor {shown(name)}"
    num_dimensions = cursor.u32(f"number of dimensions of {what}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.damaged(f"{what} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.u64(f"dimension of {what}") for _ in range(num_dimensions))[::-1]
    type_number = cursor.u32(f"type of {what}")
    offset = cursor.u64(f"offset of {what}")
    if 0 in shape:
        raise cursor.damaged(f"{what} has shape {shape} with an empty dimension")
    weight_format = FORMAT_OF_TYPE.get(type_number)
    if weight_format is None:
        raise ModelError(_unsupported_type(path, what, type_number))
    if shape[-1] % weight_format.block_weights:
        blocks = f"{weight_format.name} blocks of {weight_format.block_weights}"
        raise cursor.damaged(f"{what} has rows of {shape[-1]} weights, which are not whole {blocks}")
    num_bytes = math.prod(shape[:-1]) * weight_format.bytes_of(shape[-1])
    return _Entry(name, shape, weight_format, offset, num_bytes)


def _unsupported_type(path: Path, what: str, number: int) -> str:
    supported = ", ".join(known.name for known in formats.ALL_FORMATS)
    known_as = _OTHER_TYPES.get(number, "unknown")
    return f"{path}: {what} has type {number} ({known_as}); supported are {supported}: use a file in one of these"


def _check_places(cursor: HeaderCursor, entries: list[_Entry], start: int, end: int, alignment: int) -> None:
    """Every tensor starts aligned, ends inside the file and shares no byte with another."""
    last_end, last_name = 0, ""
    for entry in sorted(entries, key=attrgetter("offset")):
        what = f"tensor {shown(entry.name)}"
        if entry.offset % alignment:
            raise cursor.damaged(f"{what} has offset {entry.offset:,}, not a multiple of the alignment {alignment}")
        if start + entry.offset + entry.num_bytes > end:
            last_byte = start + entry.offset + entry.num_bytes
            raise cursor.damaged(f"{what} ends at byte {last_byte:,} but the file has {end:,}")
        if entry.offset < last_end:
            raise cursor.damaged(f"{what} at offset {entry.offset:,} overlaps tensor {shown(last_name)}")
        last_end, last_name = entry.offset + entry.num_bytes, entry.name


def _tensors_of(entries: list[_Entry], start: int, contents: Bytes) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for entry in entries:
        first = start + entry.offset
        mapped = contents[first : first + entry.num_bytes]
        tensors[entry.name] = StoredTensor(entry.name, entry.shape, entry.format, first, entry.num_bytes, mapped)
    return tensors
