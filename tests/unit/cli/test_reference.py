"""docs/reference/cli.md says what the tables of commands and options say."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def written_anew() -> str:
    loader = importlib.machinery.SourceFileLoader("cli_reference", str(ROOT / "scripts" / "cli-reference"))
    spec = importlib.util.spec_from_loader("cli_reference", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return str(module.reference())


def test_the_reference_is_what_the_tables_say() -> None:
    there = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert there == written_anew(), "run: .venv/bin/python scripts/cli-reference"
