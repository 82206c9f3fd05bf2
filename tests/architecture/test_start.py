"""What a question to the command line may load: nothing that takes long to import. No clocks: names of modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Libraries and rooms that only work needs; each costs more than all that a question loads.
HEAVY = (
    "asyncio",
    "email",
    "jinja2",
    "numpy",
    "orjson",
    "plait._native",
    "plait.build",
    "plait.engine",
    "plait.exec",
    "plait.model",
    "plait.text",
    "plait.weights",
    "pydantic",
    "sqlite3",
    "tokenizers",
    "tqdm",
    "yaml",
)
# `--version` reads the package's metadata, which the standard library does with its parser of mail.
FOR_VERSION = {"email"}

ASK = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from plait.cli.main import main
sys.argv[0] = "plait"
sys.exit(main())
"""


def loaded_by(*arguments: str, code: str = ASK) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("question", [("--help",), ("batch", "--help"), ("verify", "--help"), ("--version",)])
def test_a_question_loads_nothing_that_only_work_needs(question: tuple[str, ...]) -> None:
    loaded = loaded_by(*question)
    assert "plait.cli.arguments" in loaded
    assert loaded & set(HEAVY) == (FOR_VERSION if question == ("--version",) else set())


def test_import_plait_loads_nothing_that_only_work_needs() -> None:
    loaded = loaded_by(code="import sys, plait\nprint(*sys.modules, file=sys.stderr)")
    assert "plait" in loaded
    assert not loaded & set(HEAVY)
