"""Load options: what a user may say about requests that are sent to measure engines, here or behind an address.

Owns one class for each of `plait bench serving`, `compare` and `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import (
    count_between,
    number_between,
    parse_count,
    parse_flag,
    parse_path,
    parse_positive,
    parse_seconds,
    parse_target,
    parse_text,
)

ENDPOINTS = ("completions", "chat")
MAX_REQUESTS = 1_000_000
MAX_TOKENS = 1 << 24
MAX_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class Lengths:
    """Every number of tokens from `least` to `most` is as likely."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least}:{self.most}"


def parse_lengths(text: str) -> Lengths:
    """ "128", or "64:256" for any length between."""
    first, colon, second = text.partition(":")
    try:
        least = parse_count(first)
        most = parse_count(second) if colon else least
    except ValueError:
        raise ValueError("a number of tokens such as 128, or a range such as 64:256, is expected") from None
    if not 1 <= least <= most <= MAX_TOKENS:
        raise ValueError(f"numbers from 1 to {MAX_TOKENS}, the smaller first, are expected")
    return Lengths(least, most)


def parse_counts(text: str) -> tuple[int, ...]:
    """ "1,8,64": numbers from 1 on."""
    return tuple(parse_positive(part) for part in text.split(","))


_rate: Callable[[str], float] = number_between(0, MAX_PER_S, above=True)


@dataclass(frozen=True, slots=True)
class ServingOptions:
    url: str | None = option(None, parse_text, "an OpenAI-style server; default: MODEL, in process", metavar="URL")
    model_name: str | None = option(
        None, parse_text, "what requests to the server call the model; default: the first that it lists", metavar="NAME"
    )
    endpoint: str = option("completions", parse_text, "where requests go", choices=ENDPOINTS)
    api_key: str | None = option(None, parse_text, "sent as a bearer token", metavar="KEY", rare=True)
    requests: int = option(64, count_between(1, MAX_REQUESTS), "how many are sent", metavar="N", short="-n")
    rate: float | None = option(None, _rate, "requests a second; default: as --concurrency lets", metavar="R")
    concurrency: int | None = option(
        None, count_between(1, MAX_REQUESTS), "requests open at once at most; default: 8 without --rate", metavar="N"
    )
    prompt_tokens: Lengths = option(Lengths(128, 128), parse_lengths, "of each prompt: N, or MIN:MAX", metavar="N")
    output_tokens: Lengths = option(Lengths(128, 128), parse_lengths, "of each answer: N, or MIN:MAX", metavar="N")
    prompts: Path | None = option(None, parse_path, "JSONL with prompt or messages; default: words", metavar="FILE")
    warm_up: int = option(4, count_between(0, MAX_REQUESTS), "requests before those that count", metavar="N", rare=True)
    ttft_slo: float | None = option(
        None,
        parse_target,
        "time to the first token, e.g. 500ms, for goodput",
        metavar="TIME",
    )
    tpot_slo: float | None = option(None, parse_target, "mean time of a later token, for goodput", metavar="TIME")
    e2e_slo: float | None = option(None, parse_target, "whole answer within this time, for goodput", metavar="TIME")
    patience: float = option(600.0, parse_seconds, "for one answer; then it is an error", metavar="TIME", rare=True)
    json: bool = option(False, parse_flag, "print one JSON object and no table")
    quiet: bool = option(False, parse_flag, "no bar")


@dataclass(frozen=True, slots=True)
class CompareOptions:
    other: str | None = option(None, parse_text, "an OpenAI-style server to compare with; needed", metavar="URL")
    model_other: str | None = option(
        None, parse_text, "what it calls the model; default: the first that it lists", metavar="NAME"
    )
    url: str | None = option(
        None, parse_text, "the first server; default: MODEL on an engine in this process", metavar="URL"
    )
    model_name: str | None = option(
        None, parse_text, "what the first server calls the model; default: the first that it lists", metavar="NAME"
    )
    api_key: str | None = option(None, parse_text, "sent to servers as a bearer token", metavar="KEY", rare=True)
    cycles: int = option(3, count_between(1, 1000), "how often first, other, other, first", metavar="N")
    at_once: int = option(16, count_between(1, MAX_REQUESTS), "requests of the workload of many at once", metavar="N")
    long_prompt: int = option(
        4096, count_between(16, MAX_TOKENS), "tokens of the prompt that comes while others are answered", metavar="N"
    )
    patience: float = option(600.0, parse_seconds, "for one answer; then it is an error", metavar="TIME", rare=True)
    quick: bool = option(False, parse_flag, "one cycle of tiny requests: does everything run? It compares nothing")
    json: bool = option(False, parse_flag, "print one JSON object and no table")
    quiet: bool = option(False, parse_flag, "no word about progress")


@dataclass(frozen=True, slots=True)
class KernelsOptions:
    rows: tuple[int, ...] = option(
        (1, 4, 16, 64, 256), parse_counts, "numbers of rows that are multiplied, with commas", metavar="N,N"
    )
    json: bool = option(False, parse_flag, "print one JSON object and no table")
    quiet: bool = option(False, parse_flag, "no word about progress")
