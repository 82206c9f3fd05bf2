"""The tiny model as a split one, as llama.cpp splits: all facts in the first part, tensors in each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
from tests.e2e.tiny_model import Floats, tiny_arrays, write_tiny_facts


def write_parts(folder: Path, count: int = 3, *, number: int | None = None, total: int | None = None) -> list[Path]:
    """`number` is what every part but the first calls itself, `total` how many tensors the parts say there are."""
    arrays = {f"{name}.weight": array for name, array in tiny_arrays().items()}
    names = list(arrays)
    paths = []
    for part in range(count):
        held = {name: arrays[name] for name in names[part::count]}
        path = folder / f"tiny-{part + 1:05}-of-{count:05}.gguf"
        said = number if part and number is not None else part
        paths.append(write_part(path, said, count, held, len(arrays) if total is None else total, has_facts=part == 0))
    return paths


def write_part(
    path: Path,
    number: int,
    count: int,
    arrays: Mapping[str, Floats],
    total: int,
    *,
    has_facts: bool = False,
    kind: str = "",
) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    if has_facts:
        write_tiny_facts(writer)
    if kind:
        writer.add_type(kind)
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", count)
    writer.add_int32("split.tensors.count", total)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
