"""Verify options: what a user may say about a check of equal answers under load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import parse_flag, parse_path, parse_positive


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    num_prompts: int = option(64, parse_positive, "how many prompts to check", metavar="N", short="-n")
    max_tokens: int = option(24, parse_positive, "output tokens per prompt", metavar="N")
    prompts: Path | None = option(
        None, parse_path, "prompts to use instead of the built-in ones: JSONL with messages or prompt", metavar="FILE"
    )
    mixes: int = option(2, parse_positive, "how many random mixes to compare with", metavar="N")
    json: bool = option(False, parse_flag, "print the result as one JSON object")
    quiet: bool = option(False, parse_flag, "no progress bar and no start-up report")
