"""Whether the native runtime is there: missing is an answer, there and unusable is an error with a way out.

What must not be loaded into this process is looked at by another one, which sees the package's files and a module file
of our making beside them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

import plait
from plait.cli.main import main
from plait.core.errors import PlaitError
from plait.exec.native import presence

PACKAGE = Path(plait.__file__).parent
INTERFACE_DIGEST = "60ab9baaa29d4d87"
needs_native = pytest.mark.skipif(
    presence.missing() is not None, reason="needs the native runtime, and that a C++ compiler"
)


def asked_beside(folder: Path, native: bytes | None) -> str:
    """What `missing` answers, or the error that it raises, where the module file of plait._native holds these bytes."""
    package = folder / "plait"
    package.mkdir()
    for part in PACKAGE.iterdir():
        if not part.name.startswith("_native.cpython"):
            (package / part.name).symlink_to(part)
    if native is not None:
        (package / f"_native{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(native)
    program = (
        "from plait.exec.native import presence\n"
        "from plait.core.errors import PlaitError\n"
        "try:\n    print('answer:', presence.missing())\n"
        "except PlaitError as error:\n    print('error:', error)\n"
    )
    # -S: the finder of an installation in place would go first.
    command = [sys.executable, "-S", "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_an_installation_without_it_says_so_and_raises_nothing(tmp_path: Path) -> None:
    assert asked_beside(tmp_path, None) == "answer: No module named 'plait._native'\n"


@pytest.mark.parametrize("content", [b"", b"no library at all", b"\x7fELF" + bytes(60)])
def test_one_that_cannot_be_loaded_is_an_error_in_the_words_of_the_loader(content: bytes, tmp_path: Path) -> None:
    said = asked_beside(tmp_path, content)
    assert said.startswith("error: the native runtime is installed but cannot be loaded (")
    assert "_native" in said
    assert said.endswith("take --executor reference\n")
    assert said.count("\n") == 1


@needs_native
def test_one_of_another_interface_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert presence.missing() is None
    monkeypatch.setattr(presence, "INTERFACE", presence.INTERFACE + 1)
    text = rf"its interface is {presence.INTERFACE - 1}, needed is {presence.INTERFACE}\); reinstall Plait"
    with pytest.raises(PlaitError, match=text):
        presence.missing()


@needs_native
def test_whoever_takes_the_reference_is_not_troubled_by_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(presence, "INTERFACE", presence.INTERFACE + 1)
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a b"}\n')
    prompts = ["--prompts", str(tmp_path / "prompts.jsonl"), "-n", "1"]
    command = ["verify", model, *prompts, "--max-tokens", "2", "--mixes", "1", "--quiet"]
    assert main(command) == 1
    assert "was built for another version of Plait" in capsys.readouterr().err
    assert main(["bench", "limits", "--quick", "--model", model]) == 1
    assert "was built for another version of Plait" in capsys.readouterr().err
    assert main([*command, "--executor", "reference"]) == 0


def test_a_changed_interface_has_another_number() -> None:
    """Comments and docstrings are free."""
    stub = ast.parse((PACKAGE / "_native.pyi").read_text(encoding="utf-8"))
    twins = [
        ast.parse((PACKAGE / f"exec/native/{name}.py").read_text(encoding="utf-8")) for name in ("tape", "blocking")
    ]
    fields = [
        f"{kind.name}.{ast.unparse(line)}"
        for twin in twins
        for kind in twin.body
        if isinstance(kind, ast.ClassDef)
        for line in kind.body
        if isinstance(line, ast.AnnAssign | ast.Assign)
    ]
    signatures = [ast.unparse(line) for line in ast.walk(stub) if isinstance(line, ast.FunctionDef | ast.Assign)]
    digest = hashlib.sha256("\n".join([str(presence.INTERFACE), *signatures, *fields]).encode()).hexdigest()
    assert digest[:16] == INTERFACE_DIGEST, (
        "what Python and plait._native say to each other has changed: raise INTERFACE here and kInterface in "
        "csrc/bindings/module.cc, then take over the new digest"
    )
