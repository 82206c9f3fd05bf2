"""Machine rates: a short look at what `plait bench limits` measures at length, remembered for this machine.

Owns the few loops that doctor needs, and the file that keeps their results. Invariant: a remembered rate belongs to
this processor, these cores and this build; a file that is anything else is measured anew and written over.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from plait.config.machine import available_memory_bytes
from plait.cost.hardware import HardwareSpec

_FORM = 1
_SAMPLES = 5
_COMPUTE_S, _READ_S = 0.02, 0.1
_READ_BYTES = 512 << 20
"""Beyond every cache that matters here."""
KINDS = ("f32", "int8")


class RateLoops(Protocol):
    """The functions of `plait._native` that are used here."""

    def limits_loops(self) -> tuple[tuple[str, str], ...]: ...
    def limits_compute(
        self, kind: str, target: str, num_threads: int, num_samples: int, sample_s: float
    ) -> list[float]: ...
    def limits_read(self, num_bytes: int, num_threads: int, num_samples: int, sample_s: float) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class MachineRates:
    """The best of a few samples, with the best instructions of each kind. `per_s` of all `threads` together."""

    threads: int
    f32_per_s: float
    int8_per_s: float
    read_bytes_per_s: float
    one_read_bytes_per_s: float
    """Of one thread alone."""

    def hardware(self, name: str, memory_bytes: int, *, is_int8: bool) -> HardwareSpec:
        """For the cost model. Overheads are in what is measured of steps, not here."""
        return HardwareSpec(
            name=name,
            flops_per_s=self.int8_per_s if is_int8 else self.f32_per_s,
            bytes_per_s=self.read_bytes_per_s,
            memory_bytes=max(1, memory_bytes),
            share_units=self.threads,
            # By noise all threads may read more than so many times what one does; then none is in another's way.
            memory_knee_units=min(float(self.threads), max(1.0, self.read_bytes_per_s / self.one_read_bytes_per_s)),
            step_overhead_s=0.0,
            seq_overhead_s=0.0,
        )


def measure_rates(native: RateLoops, threads: int) -> MachineRates:
    best = dict.fromkeys(KINDS, 0.0)
    for kind, target in native.limits_loops():
        if kind in best:
            best[kind] = max(best[kind], *native.limits_compute(kind, target, threads, _SAMPLES, _COMPUTE_S))
    size = min(_READ_BYTES, available_memory_bytes() // 4)
    together = max(native.limits_read(size, threads, _SAMPLES, _READ_S))
    alone = together if threads == 1 else max(native.limits_read(size, 1, _SAMPLES, _READ_S))
    return MachineRates(threads, best["f32"], best["int8"], together, alone)


def rates_file(machine: str, threads: int, cache_dir: Path) -> Path:
    """`machine`: whatever rates depend on, as text."""
    digest = hashlib.blake2b(f"{_FORM} {threads} {machine}".encode(), digest_size=8).hexdigest()
    return cache_dir / "doctor" / f"{digest}.json"


def read_rates(path: Path, threads: int) -> MachineRates | None:
    """What was measured before, if there is such a file and it is whole."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(path.read_bytes())
        rates = MachineRates(**{name: found[name] for name in MachineRates.__slots__})
        numbers = [value for value in asdict(rates).values() if isinstance(value, int | float) and value > 0]
        if len(numbers) == len(MachineRates.__slots__) and rates.threads == threads:
            return rates
    return None


def remembered_rates(processor: str, cache_dir: Path) -> MachineRates | None:
    """The newest of this processor's, for those who do not measure and do not ask which build they are of."""
    newest: tuple[float, MachineRates] | None = None
    for path in sorted((cache_dir / "doctor").glob("*.json")):
        # One file that is none hides no other.
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(path.read_bytes())
            when = path.stat().st_mtime
            if found.get("processor") == processor and (newest is None or when > newest[0]):
                rates = read_rates(path, found["threads"])
                newest = newest if rates is None else (when, rates)
    return None if newest is None else newest[1]


def write_rates(path: Path, rates: MachineRates, processor: str) -> None:
    """Whole or not at all. Where it cannot be kept it is measured next time; doctor tells of the folder by itself."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps({**asdict(rates), "processor": processor}))
        scratch.replace(path)
