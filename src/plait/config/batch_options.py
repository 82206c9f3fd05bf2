"""Batch options: what a user may say about one offline job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import parse_flag, parse_path, parse_positive, parse_shard, parse_text
from plait.core.moments import check_moment


@dataclass(frozen=True, slots=True)
class BatchOptions:
    input: Path | None = option(
        None, parse_path, "OpenAI Batch lines (JSONL), or - for standard input", metavar="FILE", short="-i"
    )
    output: Path | None = option(None, parse_path, "where the answers go (JSONL)", metavar="FILE", short="-o")
    max_in_flight: int = option(
        128, parse_positive, "lines handed to the engine at once at most", metavar="N", rare=True
    )
    order: str = option(
        "input",
        parse_text,
        "order of the lines; blend: by shared beginnings and what they compute and read; auto: whatever is fastest",
        choices=("input", "auto", "blend", "dfs", "bfs", "density", "random"),
    )
    shard: tuple[int, int] | None = option(
        None,
        parse_shard,
        "run part i of n of the input, cut so that each is like the whole; n machines take one each",
        metavar="i/n",
        rare=True,
    )
    plan_only: bool = option(
        False, parse_flag, "run nothing: print densities, what is shared, and the time of each order"
    )
    finish_by: str | None = option(
        None,
        check_moment,
        "when it should be done: 2h, 17:30",
        metavar="TIME",
    )
    restart: bool = option(False, parse_flag, "forget an earlier run with the same output and begin anew")
    strict: bool = option(False, parse_flag, "refuse a faulty file before any work, and exit with 1 if a line fails")
    json: bool = option(False, parse_flag, "print the closing summary as one JSON object")
    quiet: bool = option(False, parse_flag, "no progress bar and no start-up report")
