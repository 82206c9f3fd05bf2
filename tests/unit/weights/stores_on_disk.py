"""Stores of other programs as they lie on a disk, for tests that read them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

MEDIA = "application/vnd.ollama.image."


def write_ollama(root: Path, name: str, model: bytes, **others: bytes) -> Path:
    """A model of Ollama's own library with that content, and layers of other kinds; returns its manifest."""
    layers = []
    for kind, raw in {"model": model, **others}.items():
        digest = hashlib.sha256(raw).hexdigest()
        blob = root / "blobs" / f"sha256-{digest}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(raw)
        layers.append({"mediaType": MEDIA + kind, "digest": f"sha256:{digest}", "size": len(raw)})
    whole, _, tag = name.partition(":")
    manifest = root.joinpath("manifests", "registry.ollama.ai", "library", *whole.split("/"), tag or "latest")
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": {}, "layers": layers}))
    return manifest


def blob_named_in(manifest: Path) -> Path:
    digest = json.loads(manifest.read_text())["layers"][0]["digest"]
    return manifest.parents[4] / "blobs" / str(digest).replace(":", "-")
