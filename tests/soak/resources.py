"""Resources: memory, file descriptors and threads of this process, round after round, and what did not come back.

Owns the readings. Invariant: read only between rounds, when every executor and engine is closed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
ALLOWED_GROWTH = 12 * MIB
"""The heap breaks into pieces where models of all sizes come and go. A model that is not given back is more."""
SAMPLE = 15
"""Rounds whose median stands for all around them."""


@dataclass(frozen=True, slots=True)
class Reading:
    memory: int
    descriptors: int
    threads: int


def read() -> Reading:
    gc.collect()
    give_back()
    return Reading(memory(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))


def give_back() -> None:
    """What was freed and the C library keeps, some 10 to 20 MiB: how much that happens to be says nothing of leaks."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def memory(process: int | str = "self") -> int:
    """Resident bytes, as `ps` shows them."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {process} has no resident memory")


@dataclass(frozen=True, slots=True)
class Growth:
    """From the end of the warm-up, the first third of all rounds, to the end."""

    memory: int
    descriptors: int
    threads: int

    def leaks(self) -> list[str]:
        found = {
            f"{self.memory / MIB:.1f} MiB of memory": self.memory > ALLOWED_GROWTH,
            f"{self.descriptors} file descriptors": self.descriptors > 0,
            f"{self.threads} threads": self.threads > 0,
        }
        return [what for what, is_leak in found.items() if is_leak]


def growth(readings: Sequence[Reading]) -> Growth:
    warm, last = readings[len(readings) // 3 :][:SAMPLE], readings[-SAMPLE:]
    return Growth(
        int(statistics.median(one.memory for one in last) - statistics.median(one.memory for one in warm)),
        last[-1].descriptors - warm[0].descriptors,
        last[-1].threads - warm[0].threads,
    )
