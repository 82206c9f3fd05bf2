"""Ablations: what may stand in --ablate.

Owns the names. What the memory does without a habit stands in `plait.kv.rules`, what a scheduler does without a
mechanism in `plait.sched.multiplex`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Final

OF_MEMORY: Final = ("request-awareness", "alignment", "balance", "tails")
OF_SCHEDULERS: Final = (
    "partition",
    "shares",
    "queue-order",
    "decode-delay",
    "hand-over",
    "balanced-split",
    "overlap",
    "guard",
    "layers",
    "polling",
    "preemption",
    "reserve",
    "fused",
    "lanes",
    "slices",
    "dead-band",
    "admission",
    "refusal",
    "leases",
    "joint-depth",
    "pace",
)
ABLATIONS: Final = (*OF_MEMORY, *OF_SCHEDULERS)
NONE: Final = "none"


def some_of(known: Sequence[str]) -> Callable[[str], str]:
    """A parser of none, or of names with commas; kept as they were written, without blanks."""

    def parse(text: str) -> str:
        names = [name.strip() for name in text.split(",")]
        if names == [NONE]:
            return NONE
        for name in names:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                guess = f"; did you mean {close[0]}?" if close else ""
                raise ValueError(f"none, or some of {', '.join(known)} are expected{guess}")
        return ",".join(dict.fromkeys(names))

    return parse


def memory_ablations(text: str) -> tuple[str, ...]:
    """Of a parsed value: habits of the memory."""
    return _those(text, OF_MEMORY)


def scheduler_ablations(text: str) -> tuple[str, ...]:
    """Of a parsed value: mechanisms of schedulers."""
    return _those(text, OF_SCHEDULERS)


def _those(text: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name in names)
