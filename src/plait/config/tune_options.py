"""Tune options: what a user may say about looking for better sizes of units."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import parse_flag, parse_path


@dataclass(frozen=True, slots=True)
class TuneOptions:
    quick: bool = option(False, parse_flag, "fewer shapes and samples: half a minute instead of three")
    output: Path | None = option(
        None, parse_path, "where the table goes; default: where engines on this machine look for it", metavar="FILE"
    )
    quiet: bool = option(False, parse_flag, "no word about progress")
