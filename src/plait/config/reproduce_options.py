"""Reproduce options: what a user may say about published figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import parse_report, parse_text


@dataclass(frozen=True, slots=True)
class ReproduceOptions:
    case: str | None = option(
        None, parse_text, "a case, or all of them; without one, the cases are listed", metavar="CASE|all"
    )
    hardware: str | None = option(
        None,
        parse_text,
        "a hardware file with what plait calibrate measured, for figures of this machine",
        metavar="FILE",
    )
    json: Path | None = option(None, parse_report, "write the report as JSON; - is standard output", metavar="FILE")
