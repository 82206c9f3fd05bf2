"""A model in GGUF: one file, or the parts of a split one as if they were one file.

Owns putting parts together, and the refusal of GGUF files that hold something else than a model.
Invariant: what comes out says nothing of parts, and every tensor is in exactly one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from plait.core.errors import ModelError
from plait.weights.gguf import GgufFile, read_gguf
from plait.weights.gguf_choice import parts_of
from plait.weights.gguf_header import shown
from plait.weights.stored import StoredTensor

MAX_PARTS = 1024
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"


@dataclass(frozen=True, slots=True, eq=False)
class GgufModel:
    file: GgufFile
    """With the tensors of all parts, and the metadata of the first."""
    paths: tuple[Path, ...]
    """Every part, in order."""


def read_gguf_model(path: Path | str) -> GgufModel:
    """Read a model file, with its other parts if it is one of several that lie beside each other."""
    path = Path(path)
    file = read_gguf(path)
    count = file.metadata.get(_COUNT, 1)
    if not isinstance(count, int) or count <= 1:
        _refuse_other_kinds(file)
        return GgufModel(file, (path,))
    paths = _part_paths(path, count)
    parts = [file if part == path else read_gguf(part) for part in paths]
    for number, part in enumerate(parts):
        said = (part.metadata.get(_NUMBER), part.metadata.get(_COUNT))
        if said != (number, count):
            raise ModelError(
                f"{part.path}: says that it is part {said[0]} of {said[1]} (counted from 0), not {number} of {count}; "
                "fetch all parts again"
            )
    _refuse_other_kinds(parts[0])
    tensors = _tensors_of(parts)
    metadata = {key: value for key, value in parts[0].metadata.items() if key not in (_COUNT, _NUMBER, _TENSORS)}
    num_bytes = sum(part.num_bytes for part in parts)
    return GgufModel(replace(parts[0], metadata=metadata, tensors=tensors, num_bytes=num_bytes), paths)


def _part_paths(path: Path, count: int) -> tuple[Path, ...]:
    names = parts_of(path.name)
    if len(names) != count or count > MAX_PARTS:
        raise ModelError(
            f"{path}: one of {count:,} parts of a split model; parts are found when they are called "
            f"NAME-00001-of-{min(count, 99_999):05}.gguf and so on: give them these names, or merge them into one file"
        )
    paths = tuple(path.with_name(name) for name in names)
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        raise ModelError(f"{path}: {missing[0]} is missing, one of {count} parts; fetch it into the same folder")
    return paths


def _tensors_of(parts: list[GgufFile]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelError(f"{part.path}: tensor {shown(name)} is in another part too; fetch all parts again")
            tensors[name] = tensor
    said = parts[0].metadata.get(_TENSORS, len(tensors))
    if said != len(tensors):
        raise ModelError(f"{parts[0].path}: the parts hold {len(tensors):,} tensors, not {said}; fetch all parts again")
    return tensors


def _refuse_other_kinds(file: GgufFile) -> None:
    kind, architecture = file.metadata.get("general.type"), file.metadata.get("general.architecture")
    if kind == "adapter":
        raise ModelError(f"{file.path}: a LoRA adapter, not a model; merge it into its base model and give the result")
    if kind == "mmproj" or architecture == "clip":
        raise ModelError(f"{file.path}: a projector for images, not a model; give the language model beside it")
    if kind == "imatrix" or architecture == "imatrix":
        raise ModelError(f"{file.path}: statistics for a quantiser, not a model; give the model beside it")
