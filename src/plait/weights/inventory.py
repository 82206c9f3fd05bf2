"""The inventory: every model that is on this machine, wherever programs keep them.

Owns the list and what it says of each model, from names and headers alone. Loads nothing, changes nothing, asks no
network.
Invariant: a model that cannot be read is in the list with its fault; no file makes the list fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plait.core.errors import ModelError
from plait.weights.cache import ModelPlace
from plait.weights.catalogue import CATALOGUE, CatalogueModel
from plait.weights.gguf_choice import GGUF, GgufChoice, gguf_choices, quantisation_of
from plait.weights.gguf_peek import glance_at_gguf
from plait.weights.hf_layout import CONFIG, weight_files
from plait.weights.hub_cache import DEFAULT_REVISION, Snapshot, commit_in_cache
from plait.weights.hub_names import parse_hub_name
from plait.weights.lmstudio import folders_in
from plait.weights.ollama import blob_of, models_in
from plait.weights.safetensors import read_config
from plait.weights.stores import Stores

_TORCH_TYPES: Mapping[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    name: str
    """What to give as the model."""
    source: str
    """`catalogue`, `hub`, `ollama`, `lmstudio`, `llama.cpp` or `folder`."""
    path: Path
    num_bytes: int = 0
    """Of the weights."""
    architecture: str | None = None
    quantisation: str | None = None
    """What most weights are in, as far as a name or a header says."""
    fault: str | None = None
    """Why it cannot be used, in one line."""


def inventory(
    cache_dir: Path,
    stores: Stores,
    folders: Sequence[Path] = (),
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> tuple[InventoryEntry, ...]:
    """All models of the cache, of the `stores` and in `folders` themselves, in this order, by name within each."""
    found = [*_of_catalogue(cache_dir, catalogue)]
    if stores.hub is not None:
        found += _of_hub(stores.hub)
    for root in stores.ollama:
        found += _of_ollama(root)
    for root in stores.lmstudio:
        for folder in folders_in(root):
            found += _in_folder(folder, "lmstudio", "lmstudio:" + "/".join(folder.parts[-2:]))
    for source, places in (("llama.cpp", stores.llama_cpp), ("folder", folders)):
        for folder in places:
            found += _in_folder(folder, source, str(folder))
    return tuple(found)


def _of_catalogue(cache_dir: Path, catalogue: Mapping[str, CatalogueModel]) -> Iterator[InventoryEntry]:
    for model in catalogue.values():
        file = ModelPlace.of(model, cache_dir).file
        try:
            is_here = file.is_file()
        except OSError:  # a folder of another user; the entry says so
            is_here = True
        if is_here:
            yield _gguf_entry(model.name, "catalogue", (file,))


def _of_hub(cache: Path) -> Iterator[InventoryEntry]:
    try:
        repositories = sorted(cache.glob("models--*--*"))
    except OSError:  # closed to this user
        return
    for repository in repositories:
        name = parse_hub_name("/".join(repository.name.split("--")[1:]))
        if name is None or name.file is not None:
            continue
        commit = commit_in_cache(name, DEFAULT_REVISION, cache)
        commits = sorted(path.name for path in repository.glob("snapshots/*")) if commit is None else [commit]
        for one in commits[-1:]:
            snapshot = Snapshot.of(name, one, cache)
            yield from _in_folder(snapshot.folder, "hub", name.text, snapshot.files())


def _of_ollama(root: Path) -> Iterator[InventoryEntry]:
    for model in models_in(root):
        entry = InventoryEntry(f"ollama:{model.name}", "ollama", model.manifest)
        try:
            yield _gguf_entry(entry.name, "ollama", (blob_of(model, root),))
        except ModelError as error:
            yield replace(entry, fault=str(error))


def _in_folder(folder: Path, source: str, name: str, files: Sequence[str] | None = None) -> Iterator[InventoryEntry]:
    """A checkpoint that the folder is, or the GGUF models in it; `name` is what the folder is called."""
    try:
        names = sorted(path.name for path in folder.iterdir()) if files is None else files
    except OSError:
        return
    if CONFIG in names and not all(one.endswith(GGUF) for one in _weights(names)):
        yield _checkpoint_entry(name, source, folder)
    choices = gguf_choices(names)
    for choice in choices:
        paths = tuple(folder / file for file in choice.files)
        yield _gguf_entry(_name_of(choice, choices, source, name), source, paths)


def _weights(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith((GGUF, ".safetensors", ".bin", ".pth"))]


def _name_of(choice: GgufChoice, choices: Sequence[GgufChoice], source: str, name: str) -> str:
    """The shortest that says which of the choices of a place is meant."""
    if source in ("llama.cpp", "folder"):
        return f"{name}/{choice.first}"
    if len(choices) == 1 and source != "hub":
        return name
    is_telling = choice.quantisation and sum(one.quantisation == choice.quantisation for one in choices) == 1
    return f"{name}:{choice.quantisation}" if is_telling else f"{name}/{choice.first}"


def _gguf_entry(name: str, source: str, paths: Sequence[Path]) -> InventoryEntry:
    entry = InventoryEntry(name, source, paths[0])
    try:
        num_bytes = sum(path.stat().st_size for path in paths)
        glance = glance_at_gguf(paths[0])
    except ModelError as error:
        return replace(entry, fault=str(error))
    except OSError as error:
        return replace(entry, fault=f"{paths[0]}: cannot be read ({error.strerror or error})")
    quantisation = quantisation_of(paths[0].name) or glance.quantisation
    fault = None if glance.kind == "model" else f"{paths[0]}: holds an {glance.kind}, not a model"
    return replace(entry, num_bytes=num_bytes, architecture=glance.architecture, quantisation=quantisation, fault=fault)


def _checkpoint_entry(name: str, source: str, folder: Path) -> InventoryEntry:
    entry = InventoryEntry(name, source, folder)
    try:
        num_bytes = sum(path.stat().st_size for path in weight_files(folder))
        config = read_config(folder)
    except ModelError as error:
        return replace(entry, fault=str(error))
    except OSError as error:
        return replace(entry, fault=f"{folder}: cannot be read ({error.strerror or error})")
    architecture = config.get("model_type")
    spelled = config.get("torch_dtype", config.get("dtype"))
    return replace(
        entry,
        num_bytes=num_bytes,
        architecture=architecture if isinstance(architecture, str) else None,
        quantisation=_TORCH_TYPES.get(spelled) if isinstance(spelled, str) else None,
    )
