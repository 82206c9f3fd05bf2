"""Calibrate options: what a user may say about measuring steps for the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import parse_flag, parse_path, parse_text


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    output: Path | None = option(
        None, parse_path, "where the hardware file goes; default: the cache folder", metavar="FILE", short="-o"
    )
    quick: bool = option(False, parse_flag, "fewer samples: a minute instead of three")
    fit_from: Path | None = option(
        None, parse_path, "measure nothing: fit to a benchmark's JSON results, a file or a folder", metavar="FILE"
    )
    hardware: str | None = option(
        None, parse_text, "the device that --fit-from was measured on: a name, or a hardware file", metavar="NAME"
    )
    json: bool = option(False, parse_flag, "print one JSON object instead")
    quiet: bool = option(False, parse_flag, "no word about progress")
