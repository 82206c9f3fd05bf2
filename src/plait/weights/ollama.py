"""Ollama's store: manifests by name, and blobs by checksum.

Owns the reading of both. A manifest is untrusted: it may name only blobs of its own store.
Invariant: a path that comes out lies in the store, links followed, and has the size that its manifest says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError
from plait.weights.found import ModelFile
from plait.weights.gguf_header import shown
from plait.weights.json_text import read_json_file

DEFAULT_TAG: Final = "latest"
_DEFAULT_PLACE: Final = ("registry.ollama.ai", "library")
_MEDIA: Final = "application/vnd.ollama.image."
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-f]{64})")
_NOTES: Final = {
    "template": "Ollama's prompt template is left out: the chat template of the GGUF file is used",
    "system": "Ollama's system prompt is left out: send your own",
    "params": "Ollama's sampling parameters are left out: send your own",
    "projector": "the projector for images is left out: text only",
}


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A manifest in a store."""

    name: str
    """As a user writes it: NAME:TAG, with host and namespace in front where they are not Ollama's own."""
    manifest: Path


def find_ollama(name: str, roots: Sequence[Path]) -> ModelFile | None:
    """The model called NAME or NAME:TAG, or None if no store has it. `ModelError` if one has it but not whole."""
    parts, tag = _parsed(name)
    if parts is None:
        return None
    for root in roots:
        manifest = root.joinpath("manifests", *parts, tag)
        if _is_file(manifest):
            return _model_of(OllamaModel(_name(parts, tag), manifest), root)
    return None


def models_in(root: Path) -> Iterator[OllamaModel]:
    """Every manifest of a store, by name."""
    try:
        manifests = sorted((root / "manifests").glob("*/*/*/*"))
    except OSError:
        return
    for manifest in manifests:
        *parts, tag = manifest.parts[-4:]
        if _is_file(manifest) and all(map(_PART.fullmatch, (*parts, tag))):
            yield OllamaModel(_name(parts, tag), manifest)


def _is_file(path: Path) -> bool:
    """Whether it is one for this user: the store of Ollama's service is often closed to everybody else."""
    try:
        return path.is_file()
    except OSError:
        return False


def blob_of(model: OllamaModel, root: Path) -> Path:
    """The model file that a manifest names."""
    return _blob(model, root, _layers(model))


def _parsed(name: str) -> tuple[tuple[str, ...] | None, str]:
    """Host, namespace and model, and the tag; None for what cannot be a name."""
    whole, colon, tag = name.rpartition(":")
    if not colon:
        whole, tag = name, DEFAULT_TAG
    parts = whole.split("/")
    if not 1 <= len(parts) <= 3 or not all(map(_PART.fullmatch, (*parts, tag))):
        return None, tag
    return (*_DEFAULT_PLACE[: 3 - len(parts)], *parts), tag


def _name(parts: Sequence[str], tag: str) -> str:
    if tuple(parts[:2]) == _DEFAULT_PLACE:
        return f"{parts[2]}:{tag}"
    return f"{'/'.join(parts[1:] if parts[0] == _DEFAULT_PLACE[0] else parts)}:{tag}"


def _model_of(model: OllamaModel, root: Path) -> ModelFile:
    layers = _layers(model)
    blob = _blob(model, root, layers)
    return ModelFile(blob, model.name, None, tuple(note for kind, note in _NOTES.items() if kind in layers))


def _layers(model: OllamaModel) -> Mapping[str, Mapping[str, object]]:
    """By kind, the last word of its media type. The first of a kind counts."""
    listed = read_json_file(model.manifest).get("layers")
    layers: dict[str, Mapping[str, object]] = {}
    for layer in listed if isinstance(listed, list) else ():
        kind = layer.get("mediaType") if isinstance(layer, dict) else None
        if isinstance(kind, str) and kind.startswith(_MEDIA):
            layers.setdefault(kind.removeprefix(_MEDIA), layer)
    if "adapter" in layers:
        raise ModelError(
            f"{model.name} of Ollama's store has a LoRA adapter, which is not supported; merge it into its base model"
        )
    if "model" not in layers:
        held = ", ".join(layers) or "nothing"
        raise ModelError(f"{model.name} of Ollama's store holds {held} but no GGUF model; pull another one")
    return layers


def _blob(model: OllamaModel, root: Path, layers: Mapping[str, Mapping[str, object]]) -> Path:
    digest, num_bytes = layers["model"].get("digest"), layers["model"].get("size")
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if match is None:
        raise ModelError(
            f"{model.manifest}: the model's digest is {shown(str(digest))}, not sha256 and 64 digits; pull it again"
        )
    blob = root / "blobs" / f"sha256-{match[1]}"
    try:
        if not blob.resolve().is_relative_to(root.resolve()):
            raise ModelError(f"{blob}: leads out of Ollama's store; pull {model.name} again")
        held = blob.stat().st_size
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise ModelError(f"{blob}: {model.name} is not whole in Ollama's store; pull it again") from error
    if held != num_bytes:
        raise ModelError(f"{blob}: {held:,} bytes, but the manifest says {num_bytes}; pull {model.name} again")
    return blob
