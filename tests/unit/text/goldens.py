"""The golden files of the text room, made by scripts/make_text_goldens.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "data" / "text"


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def conversations() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / "conversations.json").read_text())
    return found


def template(name: str) -> str:
    return (FOLDER / "templates" / f"{name}.jinja").read_text()
