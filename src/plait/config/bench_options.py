"""Bench options: what a user may say about a measurement of the machine, or of what number schemes cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import count_from, parse_flag, parse_path, parse_percent, parse_text


@dataclass(frozen=True, slots=True)
class BenchOptions:
    subject: str = option("limits", parse_text, "what to measure", choices=("limits", "quality"))
    quick: bool = option(False, parse_flag, "few and short samples: seconds instead of minutes")
    tokens: int = option(20_000, count_from(2), "quality: tokens of the text that are scored", metavar="N")
    text: Path | None = option(
        None, parse_path, "quality: a text in UTF-8 to score instead of the built-in one", metavar="FILE"
    )
    limit_percent: float = option(
        0.5, parse_percent, "quality: by how much perplexity may be above float32's", metavar="PERCENT"
    )
    json: bool = option(False, parse_flag, "print one JSON object and no table")
    quiet: bool = option(False, parse_flag, "no word about progress")
