"""Ollama's store: names lead to blobs, notes say what is left out, and manifests cannot lead elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.weights.stores_on_disk import MEDIA, blob_named_in, write_ollama

from plait.core.errors import ModelError
from plait.weights.ollama import find_ollama, models_in


def refusal(root: Path, name: str = "tiny") -> str:
    with pytest.raises(ModelError) as caught:
        find_ollama(name, [root])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["tiny", "tiny:latest", "library/tiny", "registry.ollama.ai/library/tiny:latest"])
def test_a_name_leads_to_its_blob(tmp_path: Path, name: str) -> None:
    manifest = write_ollama(tmp_path, "tiny", b"GGUF", template=b"{{ .Prompt }}", params=b"{}")
    found = find_ollama(name, [tmp_path / "nowhere", tmp_path])
    assert found is not None
    assert (found.path, found.name) == (blob_named_in(manifest), "tiny:latest")
    assert [note.split(" is ")[0].split(" are ")[0] for note in found.notes] == [
        "Ollama's prompt template",
        "Ollama's sampling parameters",
    ]


def test_models_of_other_places_keep_their_place_in_the_name(tmp_path: Path) -> None:
    manifest = write_ollama(tmp_path, "tiny:q4", b"GGUF")
    elsewhere = tmp_path / "manifests" / "hf.co" / "org" / "repo" / "Q4_K_M"
    elsewhere.parent.mkdir(parents=True)
    manifest.rename(elsewhere)
    assert [model.name for model in models_in(tmp_path)] == ["hf.co/org/repo:Q4_K_M"]
    found = find_ollama("hf.co/org/repo:Q4_K_M", [tmp_path])
    assert found is not None
    assert found.path.read_bytes() == b"GGUF"


@pytest.mark.parametrize(
    "name", ["", "..", "../tiny", "a/b/c/d", "tiny:", "tiny:..", "ti ny", "a" * 200, "tiny:a/b", "-"]
)
def test_what_cannot_be_a_name_is_nobodys(tmp_path: Path, name: str) -> None:
    write_ollama(tmp_path, "tiny", b"GGUF")
    assert find_ollama(name, [tmp_path]) is None


def change_layer(manifest: Path, **changed: object) -> None:
    document = json.loads(manifest.read_text())
    document["layers"][0] |= changed
    manifest.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda m: change_layer(m, digest="sha256:../../../../etc/passwd"), "not sha256 and 64 digits; pull it again"),
        (lambda m: change_layer(m, digest=7), "the model's digest is '7', not sha256"),
        (lambda m: change_layer(m, digest="sha256:" + "0" * 64), "tiny:latest is not whole in Ollama's store"),
        (lambda m: change_layer(m, size=5), "4 bytes, but the manifest says 5; pull tiny:latest again"),
        (lambda m: change_layer(m, mediaType=MEDIA + "tensor"), "holds tensor but no GGUF model; pull another one"),
        (lambda m: change_layer(m, mediaType=MEDIA + "adapter"), "has a LoRA adapter, which is not supported"),
        (lambda m: change_layer(m, mediaType=None), "holds nothing but no GGUF model"),
        (lambda m: m.write_text("{"), "not JSON"),
        (lambda m: m.write_text('{"layers": 7}'), "holds nothing but no GGUF model"),
        (lambda m: m.write_text('{"layers": [7, null, []]}'), "holds nothing but no GGUF model"),
        (lambda m: m.write_text("[" * 5000), "nested deeper than 64"),
    ],
)  # fmt: skip
def test_a_damaged_manifest_is_one_line(tmp_path: Path, damage: Callable[[Path], object], expected: str) -> None:
    damage(write_ollama(tmp_path, "tiny", b"GGUF"))
    assert expected in refusal(tmp_path)


def test_a_blob_cannot_lead_out_of_the_store(tmp_path: Path) -> None:
    blob = blob_named_in(write_ollama(tmp_path / "store", "tiny", b"GGUF"))
    (tmp_path / "secret").write_bytes(b"GGUF")
    blob.unlink()
    blob.symlink_to(tmp_path / "secret")
    assert "leads out of Ollama's store" in refusal(tmp_path / "store")
    blob.unlink()
    blob.symlink_to(blob)
    assert "is not whole in Ollama's store" in refusal(tmp_path / "store")
