"""Shards: the part of an input that one of several machines takes.

Owns which lines are whose. Talks to no other machine: every one cuts the whole file alike and takes its part.
Invariants: every line is in exactly one shard; which one follows from the file, the model and the number of shards
alone, so not from the machine, its memory or what it measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plait.batch.lines import read_lines
from plait.batch.preparing import Preparer
from plait.batch.source import Source, num_lines_at
from plait.batch.survey import OutputLimit, Survey, survey
from plait.core.errors import UsageError
from plait.sched.blend.job import Lives
from plait.sched.blend.shards import shards_of


@dataclass(frozen=True, slots=True)
class Shard:
    """Number `number` of `count`, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def check_count(path: str, shard: Shard) -> None:
    """`UsageError` for more shards than lines, before a model is loaded. Lines that ask for the same, or cannot be
    served, are known only then.
    """
    num_lines = num_lines_at(path)
    if num_lines is not None and shard.count > max(1, num_lines):
        most = max(1, num_lines)
        raise UsageError(
            f"{path} has {num_lines} lines, too few for {shard.count} shards; give --shard i/{most} at most"
        )


@dataclass(frozen=True, slots=True)
class Part:
    """`numbers` of its lines; `found`: those that can be served."""

    numbers: frozenset[int]
    found: Survey


def cut_source(
    source: Source,
    preparer: Preparer,
    limit: OutputLimit,
    lives: Lives,
    count: int,
    go_on: Callable[[], None] = lambda: None,
) -> list[Part]:
    """All parts. Lines that cannot be served are the first one's. `UsageError` if there are not so many requests."""
    found = survey(source, preparer, frozenset(), limit, go_on)
    if count > max(1, len(found)):
        raise UsageError(
            f"{source.name} has {len(found)} different requests that can be served, too few for {count} shards; give "
            f"--shard i/{max(1, len(found))} at most"
        )
    parts = shards_of(found.job, lives, count) if len(found) else [[]]
    numbers = [frozenset(number for place in places for number in found.lines_of(place)) for places in parts]
    served = frozenset().union(*numbers)
    first = numbers[0].union(line.number for line in read_lines(source) if line.number not in served)
    return [
        Part(mine, found.only(places, frozenset())) for mine, places in zip([first, *numbers[1:]], parts, strict=True)
    ]
