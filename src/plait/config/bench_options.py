"""Bench options: what a user may say about measurements of the machine and of what number schemes cost.

Owns one class for each of `plait bench limits` and `quality`; those that send requests are in `load_options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import count_from, parse_flag, parse_path, parse_percent


@dataclass(frozen=True, slots=True)
class LimitsOptions:
    quick: bool = option(False, parse_flag, "few and short samples: seconds instead of minutes")
    json: bool = option(False, parse_flag, "print one JSON object and no table")
    quiet: bool = option(False, parse_flag, "no word about progress")


@dataclass(frozen=True, slots=True)
class QualityOptions:
    quick: bool = option(False, parse_flag, "few tokens: seconds instead of minutes, and no verdict")
    tokens: int = option(20_000, count_from(2), "tokens of the text that are scored", metavar="N")
    text: Path | None = option(None, parse_path, "a text in UTF-8 to score instead of the built-in one", metavar="FILE")
    limit_percent: float = option(
        0.5, parse_percent, "by how much perplexity may be above float32's", metavar="PERCENT"
    )
    json: bool = option(False, parse_flag, "print one JSON object and no table")
    quiet: bool = option(False, parse_flag, "no word about progress")
