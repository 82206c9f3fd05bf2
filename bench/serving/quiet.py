"""Quiet: how busy the machine is with other people's work, asked while nothing of ours runs.

Owns the reading of the kernel's counters. Engines that wait by spinning become many times slower beside busy threads,
others hardly, so no ratio from a busy machine says anything about engines.
"""

from __future__ import annotations

import time
from pathlib import Path

QUIET_FRACTION = 0.05
"""Of all cores; more than that and results come with a warning."""

_COUNTERS = Path("/proc/stat")
_IDLE = (3, 4)
"""Places of idle and of waiting for disks among the times of a processor."""


def busy_fraction(seconds: float = 0.5, counters: Path = _COUNTERS) -> float | None:
    """The share of all processors' time that was used during the next `seconds`; None where the kernel does not say."""
    before = _times(counters)
    time.sleep(seconds)
    after = _times(counters)
    return None if before is None or after is None else used_fraction(before, after)


def used_fraction(before: list[int], after: list[int]) -> float:
    spent = [late - early for early, late in zip(before, after, strict=True)]
    idle = sum(spent[place] for place in _IDLE)
    return 1.0 - idle / sum(spent) if sum(spent) else 0.0


def _times(counters: Path) -> list[int] | None:
    """User, nice, system, idle, waiting, interrupts twice, stolen: of all processors together."""
    try:
        first = counters.read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return None
    return [int(number) for number in first[1:9]]
