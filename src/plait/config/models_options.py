"""Models options: what a user may say about the list of models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.engine_options import DEFAULT_CACHE_DIR
from plait.config.option import option
from plait.config.values import parse_flag, parse_path


@dataclass(frozen=True, slots=True)
class ModelsOptions:
    folder: Path | None = option(None, parse_path, "a folder to look into as well", metavar="DIR")
    cache_dir: Path = option(DEFAULT_CACHE_DIR, parse_path, "where fetched models are kept", metavar="DIR")
    json: bool = option(False, parse_flag, "print one JSON object and no table")
