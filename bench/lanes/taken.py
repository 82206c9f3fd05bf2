"""Taken: how often this machine takes a core away from who computes on it, while nobody computes anything else.

Owns a process for each core that does nothing but look at the clock, and what follows for steps of some length. Knows
no model and no policy.
Invariant: what is counted is time in which a process that wanted its core did not have it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

LEAST_S = 0.0005
"""Shorter absences are interrupts and the clock itself."""
_LOOK = """
import json, os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
until = time.monotonic() + float(sys.argv[2])
least, found, before = float(sys.argv[3]), [], time.monotonic()
while before < until:
    now = time.monotonic()
    if now - before > least:
        found.append((before, now))
    before = now
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """Absences of each core, (begin, end) in seconds of the monotonic clock."""

    seconds: float
    cores: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def lengths_s(self) -> list[float]:
        return sorted(end - begin for core in self.cores for begin, end in core)

    def lost_s(self, step_s: float, part: float) -> float:
        """What so large a part of such steps lose at most. A step waits for the core that was away longest."""
        begins = [begin for core in self.cores for begin, _ in core]
        first = min(begins, default=0.0)
        lost = sorted(
            max(_overlap(core, first + place * step_s, first + (place + 1) * step_s) for core in self.cores)
            for place in range(max(1, int(self.seconds / step_s)))
        )
        return lost[min(len(lost) - 1, int(part * len(lost)))]


def _overlap(absences: tuple[tuple[float, float], ...], begin_s: float, end_s: float) -> float:
    return sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in absences)


def watch_cores(seconds: float) -> Taken:
    command = [sys.executable, "-c", _LOOK]
    watchers = [
        subprocess.Popen([*command, str(core), str(seconds), str(LEAST_S)], stdout=subprocess.PIPE, text=True)
        for core in sorted(os.sched_getaffinity(0))
    ]
    found = [json.loads(one.communicate()[0]) for one in watchers]
    return Taken(seconds, tuple(tuple((begin, end) for begin, end in core) for core in found))
