"""`plait models`: the catalogue and what is on a machine that the test made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.cli.main import main
from plait.cli.models import SCHEMA, lines, size_text
from plait.weights.catalogue import CATALOGUE
from plait.weights.inventory import InventoryEntry

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, so that nothing of this machine is found."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("plait.weights.stores.SERVICE_OLLAMA", ())
    return tmp_path


def command(home: Path, *more: str) -> list[str]:
    return ["models", "--cache-dir", str(home / "cache"), *more]


def test_what_can_be_fetched_is_listed_where_nothing_is_here(home: Path, capsys: Capture) -> None:
    assert main(command(home)) == 0
    told = capsys.readouterr().out
    for model in CATALOGUE.values():
        assert f"  {model.name} " in told
    assert "fetched when first used, 89 MiB" in told
    assert "on this machine: none found" in told


def test_models_of_a_folder_are_found_and_what_they_are_called_can_be_used(home: Path, capsys: Capture) -> None:
    folder = home / "mine"
    folder.mkdir()
    write_tiny_model(folder / "tiny-F32.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    assert main(command(home, str(folder), "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == SCHEMA
    assert [one["is_here"] for one in found["catalogue"]] == [False] * len(CATALOGUE)
    here = {Path(one["path"]).name: one for one in found["here"]}
    assert here["tiny-F32.gguf"]["architecture"] == "llama"
    assert here["tiny-F32.gguf"]["num_bytes"] == (folder / "tiny-F32.gguf").stat().st_size
    assert here["tiny-F32.gguf"]["fault"] is None
    assert here["broken.gguf"]["fault"]
    prompts = home / "prompts.jsonl"
    prompts.write_text('{"prompt": "x"}\n')
    assert main(["verify", here["tiny-F32.gguf"]["name"], "--prompts", str(prompts), "--quiet"]) == 0
    capsys.readouterr()
    assert main(command(home, str(folder))) == 0
    told = capsys.readouterr().out
    assert "CANNOT BE USED: " in told


def test_names_cannot_steer_a_terminal() -> None:
    entry = InventoryEntry("a\x1b[2Jb", "ollama", Path("p\x07"), 5, "ll\x1bama", "Q4\x00")
    told = "\n".join(lines(tuple(CATALOGUE.values()), [entry]))
    assert not {char for char in told if ord(char) < 0x20} - {"\n"}
    assert "a\u241b[2Jb" in told


def test_a_folder_that_is_none_is_refused(home: Path, capsys: Capture) -> None:
    assert main(command(home, str(home / "none"))) == 2
    assert "is no folder; name one that is there" in capsys.readouterr().err


def test_sizes_are_told_in_a_unit_that_suits_them() -> None:
    assert [size_text(size) for size in (2048, 5 << 20, 3 << 29)] == ["2 KiB", "5 MiB", "1.5 GiB"]
