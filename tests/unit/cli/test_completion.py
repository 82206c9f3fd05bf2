"""Completion scripts: bash runs its own; what TAB would offer is what there is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from plait.cli.commands import COMMANDS
from plait.cli.completion import script
from plait.cli.main import main
from plait.config.completion_options import SHELLS

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_plait
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    path = tmp_path_factory.mktemp("completion") / "plait.bash"
    path.write_text(script("bash", COMMANDS))
    return path


def offered(bash_script: Path, folder: Path, *words: str) -> list[str]:
    """What bash offers when TAB is pressed at the end of `words`."""
    command = ["bash", "--norc", "-c", ASK, "bash", str(bash_script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=folder, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_are_completed(bash_script: Path, tmp_path: Path) -> None:
    assert offered(bash_script, tmp_path, "plait", "ver") == ["verify"]
    assert offered(bash_script, tmp_path, "plait", "--v") == ["--version"]
    assert {command.name.split()[0] for command in COMMANDS} <= set(offered(bash_script, tmp_path, "plait", ""))


def test_second_words_are_completed(bash_script: Path, tmp_path: Path) -> None:
    assert offered(bash_script, tmp_path, "plait", "bench", "lim") == ["limits"]
    assert {"limits", "quality"} <= set(offered(bash_script, tmp_path, "plait", "bench", ""))


def test_options_are_completed(bash_script: Path, tmp_path: Path) -> None:
    assert offered(bash_script, tmp_path, "plait", "verify", "--max-t") == ["--max-tokens"]
    assert "--limit-percent" in offered(bash_script, tmp_path, "plait", "bench", "quality", "--")
    assert "--limit-percent" not in offered(bash_script, tmp_path, "plait", "bench", "limits", "--")
    assert offered(bash_script, tmp_path, "plait", "batch", "--no-ena") == ["--no-enable-prefix-caching"]


def test_values_are_completed(bash_script: Path, tmp_path: Path) -> None:
    assert offered(bash_script, tmp_path, "plait", "batch", "--executor", "") == ["auto", "native", "reference"]
    assert offered(bash_script, tmp_path, "plait", "bench", "limits", "--dtype", "f") == ["f32"]
    assert offered(bash_script, tmp_path, "plait", "completion", "f") == ["fish"]
    assert offered(bash_script, tmp_path, "plait", "verify", "--max-tokens", "") == [], "a number is not known"


def test_models_are_names_or_files(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "small.gguf").touch()
    assert offered(bash_script, tmp_path, "plait", "verify", "sm") == ["smollm2", "small.gguf"]
    assert offered(bash_script, tmp_path, "plait", "batch", "-m", "sm") == ["smollm2", "small.gguf"]


def test_files_are_completed_where_a_file_is_wanted(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").touch()
    (tmp_path / "folder").mkdir()
    assert offered(bash_script, tmp_path, "plait", "batch", "-i", "jo") == ["jobs.jsonl"]
    assert offered(bash_script, tmp_path, "plait", "batch", "--cache-dir", "") == ["folder"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_is_told_every_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "plait completion " + shell in text.splitlines()[0]
    for word in ("limits", "kv-cache-memory", "max-in-flight", "smollm2"):
        assert word in text


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_is_here_can_read_its_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    path = tmp_path / "script"
    path.write_text(script(shell, COMMANDS))
    subprocess.run([shell, "-n", str(path)], check=True, timeout=30)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zhs"]) == 2
    assert "choose one of bash, zsh, fish; did you mean zsh?" in capsys.readouterr().err
