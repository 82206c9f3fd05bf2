"""Schedulers: what may stand in --scheduler.

Owns the names and how their arguments are written. What a scheduler does stands in
`plait.sched.multiplex`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.config.values import parse_target

CHUNKED: Final = "chunked"
STATIC: Final = "static"
UNPARTITIONED: Final = "unpartitioned"
INTERLEAVED: Final = "interleaved"
"""Chunks, on a device that runs the attention of decode beside products: simulated only."""
SCHEDULERS: Final = (CHUNKED, "bullet", "muxwise", "xyserve", "temporal", "plait")
_UNITS: Final = re.compile(r"[1-9][0-9]{0,6}")


@dataclass(frozen=True, slots=True)
class SchedulerChoice:
    """`chunk_s`: of chunks that are cut by time; `units`: of decode in a static split."""

    name: str = CHUNKED
    chunk_s: float | None = None
    units: int | None = None

    def __str__(self) -> str:
        if self.chunk_s is not None:
            return f"{self.name}:{self.chunk_s * 1000:g}ms"
        return self.name if self.units is None else f"{self.name}:{self.units}"


DEFAULT_SCHEDULER: Final = SchedulerChoice()


def parse_scheduler(text: str) -> SchedulerChoice:
    """Where an engine serves: one of `SCHEDULERS`; chunked:TIME cuts chunks by time, static:UNITS gives decode so many
    units; unpartitioned.
    """
    if text.strip() == INTERLEAVED:
        raise ValueError("it is there in plait sim alone: no executor here runs steps in halves")
    return _parsed(text, (UNPARTITIONED,))


def parse_simulated_scheduler(text: str) -> SchedulerChoice:
    """The same where a device is simulated; interleaved as well."""
    return _parsed(text, (UNPARTITIONED, INTERLEAVED))


def _parsed(text: str, others: Sequence[str]) -> SchedulerChoice:
    name, colon, argument = (part.strip() for part in text.partition(":"))
    if name == STATIC and _UNITS.fullmatch(argument):
        return SchedulerChoice(name, units=int(argument))
    if name == CHUNKED and colon:
        return SchedulerChoice(name, chunk_s=parse_target(argument))
    if name not in (*SCHEDULERS, *others) or colon:
        *forms, last = (*SCHEDULERS, "chunked:TIME", "static:UNITS", *others)
        expected = f"one of {', '.join(forms)} or {last} is expected"
        raise ValueError(expected + _nearest(name, (*SCHEDULERS, STATIC, *others)))
    return SchedulerChoice(name)


def _nearest(name: str, known: Sequence[str]) -> str:
    if name in known:
        # What is wrong is its argument.
        return ""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
