"""Setting: what all measures share: the library, how much is measured, and the machine's rates beside every measure.

Owns the choice of sizes. Invariant: a rate is sampled in turns with what is measured as a fraction of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .library import CacheType, Library, Machine
from .turns import Effort, Key, Spread, Take, in_turns

MIB = 1 << 20
SMOLLM2_LAYER = {"qkv": (576, 960), "o": (576, 576), "gate-up": (576, 3072), "down": (1536, 576)}
"""(K, N) of the matrices of a layer, as the runtime multiplies them: those with one input in one product."""
SMOLLM2_HEAD = {"head": (576, 49152)}

KINDS = ("f32", "int8")
_ROUNDS_PER_CALL = 1000
_NOMINAL_OPERATIONS = 1e6
_BYTES_PER_CALL = 2 * MIB
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL_CACHE_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class Setting:
    library: Library
    effort: Effort
    threads: tuple[int, ...]
    target: str
    targets: tuple[str, ...]
    schemes: Mapping[str, int]
    """Number schemes that are measured, by name, with their codes."""
    quick: bool
    cold_bytes: int
    """What copies of a matrix have together: three times the last cache."""
    processor_time: bool = False
    """Of a single thread: seconds in which it runs."""
    cache_type: CacheType = CacheType.F16
    """Of K6."""

    @contextmanager
    def machine(self, num_threads: int, target: str | None = None) -> Iterator[Machine]:
        with Machine(
            self.library,
            target or self.target,
            num_threads,
            4 * self.cold_bytes,
            processor_time=self.processor_time,
        ) as machine:
            yield machine


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine can do, of all threads together: medians of the same run."""

    f32: float
    """Operations a second; a multiplication and an addition are two."""
    int8: float
    read: float
    """Bytes a second."""

    def compute(self, *, is_integer: bool) -> float:
        return self.int8 if is_integer else self.f32


def measure(machine: Machine, takes: Mapping[Key, Take], effort: Effort) -> tuple[dict[Key, Spread], Rates]:
    """Seconds of one call of each, and the rates, all in turns."""
    kinds = [kind for kind in KINDS if machine.compute_rate(kind, 1) > 0]

    # A call's number of operations is the library's business: it answers with a rate, and turned over that is a time.
    def compute(kind: str) -> Take:
        return lambda calls: calls * _NOMINAL_OPERATIONS / machine.compute_rate(kind, _ROUNDS_PER_CALL * calls)

    def read(calls: int) -> float:
        return _BYTES_PER_CALL * calls / machine.read_rate(_BYTES_PER_CALL * calls)

    everything: dict[object, Take] = {("rate", kind): compute(kind) for kind in kinds}
    everything["rate", "read"] = read
    everything.update(takes)
    found = in_turns(everything, effort)
    f32, int8 = (_NOMINAL_OPERATIONS / found["rate", kind].seconds if kind in kinds else math.nan for kind in KINDS)
    rates = Rates(f32, int8, _BYTES_PER_CALL / found["rate", "read"].seconds)
    return {key: found[key] for key in takes}, rates


def last_cache_bytes() -> int:
    """Of the first processor; a usual size where the system does not say."""
    sizes = [_USUAL_CACHE_BYTES // 32]
    for path in _CACHES.glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        sizes.append(int(text[:-1]) * {"K": 1024, "M": MIB}.get(text[-1], 1))
    return max(sizes) if len(sizes) > 1 else _USUAL_CACHE_BYTES


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
