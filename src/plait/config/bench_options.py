"""Bench options: what a user may say about a measurement of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from plait.config.option import option
from plait.config.values import parse_flag, parse_text


@dataclass(frozen=True, slots=True)
class BenchOptions:
    subject: str = option("limits", parse_text, "what to measure", choices=("limits",))
    quick: bool = option(False, parse_flag, "few and short samples: seconds instead of minutes")
    json: bool = option(False, parse_flag, "print one JSON object and no table")
    quiet: bool = option(False, parse_flag, "no word about progress")
