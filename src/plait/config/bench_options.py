"""Bench options: what a user may say about measurements of the machine and of what number schemes cost.

Owns one class for each of `plait bench limits`, `quality` and `speculation`; `load_options` has those of requests to
servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import count_from, number_between, parse_flag, parse_path, parse_percent, parse_positive

PROMPT_SETS = ("rag", "edit", "json", "chat", "maths", "code")


def parse_sets(text: str) -> tuple[str, ...]:
    """ "rag,code": names of sets of prompts."""
    names = tuple(text.split(","))
    for name in names:
        if name not in PROMPT_SETS:
            raise ValueError(f"{name!r} is no set of prompts; there are {', '.join(PROMPT_SETS)}")
    return names


def parse_streams(text: str) -> tuple[int, ...]:
    """ "1,8": numbers from 1 on."""
    return tuple(parse_positive(part) for part in text.split(","))


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


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    sets: tuple[str, ...] = option(PROMPT_SETS, parse_sets, "which prompts, with commas", metavar="NAME,NAME")
    streams: tuple[int, ...] = option((1, 8), parse_streams, "requests at once, with commas", metavar="N,N")
    temperature: float = option(0.0, number_between(0, 2), "of answers; 0: greedy", metavar="T")
    quick: bool = option(False, parse_flag, "one short answer of each set: does it run? It compares nothing")
    json: bool = option(False, parse_flag, "print one JSON object and no table")
    quiet: bool = option(False, parse_flag, "no word about progress")
