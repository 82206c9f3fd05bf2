"""The inventory: what is on this machine, by names that can be given back, faults included."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.tiny_checkpoint import write_tiny_checkpoint
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.weights.stores_on_disk import write_ollama

from plait.core.errors import ModelError
from plait.weights.inventory import InventoryEntry, inventory
from plait.weights.sources import resolve_model
from plait.weights.stores import NO_STORES, Stores

COMMIT = "0" * 40


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf").read_bytes()


def put(path: Path, raw: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def snapshot(hub: Path, name: str) -> Path:
    repository = hub / f"models--{name.replace('/', '--')}"
    put(repository / "refs" / "main", COMMIT.encode())
    return repository / "snapshots" / COMMIT


def test_every_store_is_listed_with_names_that_lead_back(tmp_path: Path, gguf: bytes) -> None:
    stores = Stores(tmp_path / "hub", (tmp_path / "ollama",), (tmp_path / "lmstudio",), (tmp_path / "llama.cpp",))
    assert stores.hub is not None
    write_tiny_checkpoint(snapshot(stores.hub, "org/tiny"), shards=2)
    for name in ("tiny-Q8_0.gguf", "tiny-F32-00001-of-00002.gguf", "tiny-F32-00002-of-00002.gguf", "mmproj.gguf"):
        put(snapshot(stores.hub, "org/ggufs") / name, gguf)
    write_ollama(tmp_path / "ollama", "tiny:1b", gguf)
    put(tmp_path / "lmstudio" / "org" / "tiny" / "tiny-Q4_0.gguf", gguf)
    put(tmp_path / "llama.cpp" / "org_tiny_Q5_K_M.gguf", gguf)
    put(tmp_path / "folder" / "mine.gguf", gguf)
    found = inventory(tmp_path / "cache", stores, [tmp_path / "folder"])
    assert [(entry.name, entry.source, entry.architecture, entry.quantisation) for entry in found] == [
        ("org/ggufs:F32", "hub", "llama", "F32"),
        ("org/ggufs:Q8_0", "hub", "llama", "Q8_0"),
        ("org/tiny", "hub", "llama", "F32"),
        ("ollama:tiny:1b", "ollama", "llama", None),
        ("lmstudio:org/tiny", "lmstudio", "llama", "Q4_0"),
        (f"{tmp_path}/llama.cpp/org_tiny_Q5_K_M.gguf", "llama.cpp", "llama", "Q5_K_M"),
        (f"{tmp_path}/folder/mine.gguf", "folder", "llama", None),
    ]
    assert [entry.fault for entry in found] == [None] * len(found)
    weights = sum(path.stat().st_size for path in found[2].path.glob("*.safetensors"))
    assert [entry.num_bytes for entry in found] == [2 * len(gguf), len(gguf), weights, *[len(gguf)] * 4]
    for entry in found[3:]:
        assert resolve_model(entry.name, tmp_path, stores=stores).path == entry.path


def test_a_header_says_what_a_name_does_not(tmp_path: Path, gguf: bytes) -> None:
    file_type = b"general.file_type" + (4).to_bytes(4, "little") + (15).to_bytes(4, "little")
    entry = len(b"general.file_type").to_bytes(8, "little") + file_type
    num_keys = int.from_bytes(gguf[16:24], "little") + 1
    put(tmp_path / "mine.gguf", gguf[:16] + num_keys.to_bytes(8, "little") + entry + gguf[24:])
    assert [entry.quantisation for entry in inventory(tmp_path, NO_STORES, [tmp_path])] == ["Q4_K_M"]


def faults(folder: Path) -> list[str | None]:
    return [entry.fault for entry in inventory(folder / "cache", NO_STORES, [folder])]


def test_what_cannot_be_read_is_listed_with_its_fault(tmp_path: Path, gguf: bytes) -> None:
    put(tmp_path / "a" / "cut.gguf", gguf[:100])
    put(tmp_path / "b" / "text.gguf", b"text")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "gone.gguf").symlink_to(tmp_path / "nowhere")
    directory = write_tiny_checkpoint(tmp_path / "d", shards=2, config={"quantization_config": {"quant_method": "awq"}})
    expected = [("a", "cut short"), ("b", "not a GGUF file"), ("c", "cannot be read"), ("d", "quant_method 'awq'")]
    for folder, fault in expected:
        assert [fault in str(one) for one in faults(tmp_path / folder)] == [True], folder
    (directory / "model-00001-of-00002.safetensors").unlink()
    assert "is missing" in str(faults(directory))


def test_a_cache_that_cannot_be_looked_into_is_a_fault_of_its_model(tmp_path: Path) -> None:
    (entry,) = inventory(tmp_path / ("x" * 300), NO_STORES)  # too long a name: root is refused nothing else
    assert entry.name == "smollm2"
    assert "cannot be read" in str(entry.fault)


def test_stores_that_are_closed_to_this_user_hold_nothing(tmp_path: Path) -> None:
    closed = tmp_path / ("x" * 300)  # too long a name: root is refused nothing else
    assert inventory(tmp_path, Stores(closed, (closed,), (closed,), (closed,)), [closed]) == ()
    with pytest.raises(ModelError, match="cannot be read"):
        resolve_model("lmstudio:org/tiny", tmp_path, stores=Stores(closed, (closed,), (closed,), (closed,)))
    with pytest.raises(ModelError, match="nobodys"):
        resolve_model("nobodys:1b", tmp_path, stores=Stores(closed, (closed,), (closed,), (closed,)))


def test_adapters_are_no_models(tmp_path: Path, gguf: bytes) -> None:
    kind = b"general.type" + (8).to_bytes(4, "little") + (7).to_bytes(8, "little") + b"adapter"
    num_keys = int.from_bytes(gguf[16:24], "little") + 1
    raw = gguf[:16] + num_keys.to_bytes(8, "little") + len(b"general.type").to_bytes(8, "little") + kind + gguf[24:]
    put(tmp_path / "lora.gguf", raw)
    assert faults(tmp_path) == [f"{tmp_path}/lora.gguf: holds an adapter, not a model"]


def test_nothing_is_nothing(tmp_path: Path) -> None:
    places = Stores(tmp_path / "a", (tmp_path / "b",), (tmp_path / "c",), (tmp_path / "d",))
    assert inventory(tmp_path / "cache", places, [tmp_path / "e"]) == ()


def test_an_installed_catalogue_model_is_listed_by_its_name(tmp_path: Path, gguf: bytes) -> None:
    path = put(tmp_path / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf", gguf)
    expected = InventoryEntry("smollm2", "catalogue", path, len(gguf), "llama", "Q4_1")
    assert inventory(tmp_path, NO_STORES) == (expected,)
