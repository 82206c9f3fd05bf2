"""Safetensors: checkpoints of one file or many, as a table of memory-mapped tensors.

Owns the layout of a safetensors file and its tensor types. Copies no tensor, knows no architecture, runs nothing.
Invariant: a `Checkpoint` that exists is sound: every tensor lies whole in its file, the tensors of a file fill it
without a gap, and no two have the same name.
"""

from __future__ import annotations

import math
import mmap
import re
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from plait.core.errors import ModelError
from plait.model.facts import Facts
from plait.model.hf_reading import refuse_quantization
from plait.weights import formats
from plait.weights.gguf_header import shown
from plait.weights.hf_layout import CONFIG, INDEX, SHARD, shard_of_tensors, weight_files
from plait.weights.json_text import MAX_TEXT_BYTES, parse_json_table, read_json_file
from plait.weights.mapping import map_file
from plait.weights.stored import StoredTensor

MAX_TENSORS: Final = 262_144
"""All files of a checkpoint together; large mixtures of experts have some 100,000."""
MAX_DIMENSIONS: Final = 8
MAX_DIMENSION: Final = 1 << 48
FORMAT_OF_TYPE: Final = MappingProxyType({"F32": formats.F32, "F16": formats.F16, "BF16": formats.BF16})
# Types that exist but are not supported, with their bits, so that their sizes are checked all the same.
_OTHER_TYPES: Final = MappingProxyType(
    {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F64": 64}
    | {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64}
    | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
)
# What is not a weight: masks, counters and frequencies that follow from the configuration.
_BUFFER: Final = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids)")
# 4-bit codes and their scales, as GPT-OSS has them.
_MXFP4_PART: Final = re.compile(r".+\.experts\.(gate_up|down)_proj_(blocks|scales)")
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A sound checkpoint. The mappings live as long as any tensor's bytes are referred to."""

    directory: Path
    files: tuple[Path, ...]
    """Those with weights, in order."""
    config: dict[str, object]
    """What config.json says."""
    tensors: dict[str, StoredTensor]
    """In the order of the files and of their headers, without buffers of other types."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as the header describes it, before its bytes are known to be there."""

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Map a model directory, or the directory of a single file with all of its weights; `ModelError` if anything is
    unsound.
    """
    path = Path(path)
    alone = path if path.is_file() and SHARD.fullmatch(path.name) is None else None
    directory = path.parent if path.is_file() else path
    config = read_config(directory)
    try:
        files = (alone,) if alone is not None else weight_files(directory)
    except OSError as error:
        raise ModelError(f"{directory}: cannot be read ({error.strerror or error}); check its permissions") from error
    tensors: dict[str, StoredTensor] = {}
    others: dict[str, str] = {}
    for file in files:
        held, unread = read_safetensors(file)
        for name in (*held, *unread):
            if name in tensors or name in others:
                raise ModelError(f"{file}: tensor {shown(name)} is in another file too; fetch the model again")
        tensors.update(held)
        others.update(unread)
        if len(tensors) + len(others) > MAX_TENSORS:
            raise ModelError(f"{directory}: more than {MAX_TENSORS:,} tensors; use a smaller model")
    if len(files) > 1:
        _check_index(directory, {**tensors, **others})
    _refuse_other_types(directory, others)
    return Checkpoint(directory, files, config, tensors)


def read_config(directory: Path) -> dict[str, object]:
    """What config.json says, unless it says that the weights are in numbers that cannot be read."""
    if not (directory / CONFIG).exists():
        raise ModelError(f"{directory}: no {CONFIG}, which says what the weights mean; fetch the whole model")
    config = read_json_file(directory / CONFIG)
    refuse_quantization(Facts(str(directory / CONFIG), config))
    return config


def read_safetensors(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of one file, and the types of those that are in none of ours."""
    mapped = map_file(path, "a .safetensors file")
    entries, start = _read_header(path, mapped)
    _check_places(path, entries, len(mapped) - start)
    contents = np.frombuffer(mapped, dtype=np.uint8)
    tensors: dict[str, StoredTensor] = {}
    unreadable: dict[str, str] = {}
    for entry in entries:
        weight_format = FORMAT_OF_TYPE.get(entry.type)
        if entry.type == "U8" and _MXFP4_PART.fullmatch(entry.name):
            weight_format = formats.BYTE
        if weight_format is None:
            unreadable[entry.name] = entry.type
            continue
        first, num_bytes = start + entry.start, entry.stop - entry.start
        raw = contents[first : first + num_bytes]
        tensors[entry.name] = StoredTensor(entry.name, entry.shape, weight_format, first, num_bytes, raw)
    return tensors, unreadable


def _refuse_other_types(directory: Path, others: dict[str, str]) -> None:
    for name, kind in others.items():
        if _BUFFER.fullmatch(name) is None:
            raise ModelError(
                f"{directory}: tensor {shown(name)} is in {kind}; supported are {', '.join(FORMAT_OF_TYPE)}: take a "
                "revision in one of these"
            )


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path}: {what}; the file is damaged or cut short, fetch it again")


def _read_header(path: Path, mapped: mmap.mmap) -> tuple[list[_Entry], int]:
    """The tensors that the header names, and where their bytes begin."""
    if len(mapped) < _LENGTH_BYTES:
        raise _damaged(path, f"{len(mapped)} bytes are no safetensors file")
    num_bytes = int.from_bytes(mapped[:_LENGTH_BYTES], "little")
    if num_bytes > len(mapped) - _LENGTH_BYTES:
        raise _damaged(path, f"the header claims {num_bytes:,} bytes but {len(mapped) - _LENGTH_BYTES:,} are there")
    if num_bytes > MAX_TEXT_BYTES:
        raise ModelError(f"{path}: a header of {num_bytes:,} bytes; the limit is {MAX_TEXT_BYTES:,}, use smaller files")
    start = _LENGTH_BYTES + num_bytes
    header = parse_json_table(mapped[_LENGTH_BYTES:start], f"{path}: header")
    header.pop(_METADATA, None)
    if not 0 < len(header) <= MAX_TENSORS:
        raise ModelError(f"{path}: {len(header):,} tensors; 1 to {MAX_TENSORS:,} are possible, fetch the file again")
    return [_read_entry(path, name, value) for name, value in header.items()], start


def _read_entry(path: Path, name: str, value: object) -> _Entry:
    what = f"tensor {shown(name)}"
    if not isinstance(value, dict):
        raise _damaged(path, f"{what} is described by a {type(value).__name__}, not by a table")
    kind, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(kind, str):
        raise _damaged(path, f"{what} has no dtype")
    dimensions = _whole_numbers(shape)
    if dimensions is None or len(dimensions) > MAX_DIMENSIONS:
        raise _damaged(path, f"{what} has the shape {shown(str(shape))}, not at most {MAX_DIMENSIONS} whole numbers")
    places = _whole_numbers(offsets)
    if places is None or len(places) != 2 or places[0] > places[1]:
        raise _damaged(path, f"{what} has the data_offsets {shown(str(offsets))}, not a first and a last byte")
    return _Entry(name, kind, dimensions, *places)


def _whole_numbers(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    numbers = [one for one in value if type(one) is int and 0 <= one <= MAX_DIMENSION]
    return tuple(numbers) if len(numbers) == len(value) else None


def _check_places(path: Path, entries: list[_Entry], num_bytes: int) -> None:
    """Every tensor takes what its shape needs, and together they take every byte of the file once."""
    last_stop, last_name = 0, ""
    for entry in sorted(entries, key=attrgetter("start", "stop")):
        what = f"tensor {shown(entry.name)}"
        if entry.stop > num_bytes:
            raise _damaged(path, f"{what} ends at byte {entry.stop:,} of {num_bytes:,}")
        if entry.start < last_stop:
            raise _damaged(path, f"{what} at byte {entry.start:,} overlaps tensor {shown(last_name)}")
        if entry.start > last_stop:
            raise _damaged(path, f"{entry.start - last_stop:,} bytes before {what} belong to no tensor")
        bits = _bits_of(entry.type)
        if bits is None:
            known = ", ".join((*FORMAT_OF_TYPE, *_OTHER_TYPES))
            raise ModelError(f"{path}: {what} has the unknown dtype {shown(entry.type)}; known are {known}")
        needed = (math.prod(entry.shape) * bits + 7) // 8
        if entry.stop - entry.start != needed:
            held = f"{entry.type} of shape {entry.shape} needs {needed:,} bytes"
            raise _damaged(path, f"{what} takes {entry.stop - entry.start:,} bytes but {held}")
        last_stop, last_name = entry.stop, entry.name
    if last_stop != num_bytes:
        raise _damaged(path, f"{num_bytes - last_stop:,} bytes at the end belong to no tensor")


def _bits_of(kind: str) -> int | None:
    weight_format = FORMAT_OF_TYPE.get(kind)
    return _OTHER_TYPES.get(kind) if weight_format is None else 8 * weight_format.block_bytes


def _check_index(directory: Path, held: dict[str, object]) -> None:
    missing = [name for name in shard_of_tensors(directory / INDEX) if name not in held]
    if missing:
        raise ModelError(
            f"{directory}: tensor {shown(missing[0])} of {INDEX} is in none of the files that it names; fetch the "
            "model again"
        )
