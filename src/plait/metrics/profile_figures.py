"""Profile figures: where the time of a run's steps went, for people and for programs.

Owns the table, the JSON object and the definition of a step's overhead. Measures nothing.
Invariant: rows add up to the time in which there was something to do; a row of workers' time is that time of all
workers by their number, so that a run on any number of cores reads in seconds of the clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.core.profiling import STALL_S

STEP_OVERHEAD_S = 0.3e-3
SEQUENCE_OVERHEAD_S = 15e-6
"""What a step may spend outside kernels: so much, and so much for each of its sequences."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """`outside_s`: from the end of the step before to its own end, without kernels and without idleness."""

    outside_s: float
    num_sequences: int

    @property
    def is_within(self) -> bool:
        return self.outside_s <= STEP_OVERHEAD_S + SEQUENCE_OVERHEAD_S * self.num_sequences


@dataclass(frozen=True, slots=True)
class Overhead:
    """Of steps outside kernels. `per_sequence_s`: by the sequences of all these steps."""

    num_steps: int
    median_s: float
    mean_s: float
    p90_s: float
    per_sequence_s: float
    within_fraction: float
    """Steps that kept to STEP_OVERHEAD_S and SEQUENCE_OVERHEAD_S."""

    @staticmethod
    def of(costs: Sequence[StepCost]) -> Overhead | None:
        if not costs:
            return None
        seconds = sorted(cost.outside_s for cost in costs)
        total_s = sum(seconds)
        return Overhead(
            num_steps=len(costs),
            median_s=statistics.median(seconds),
            mean_s=total_s / len(costs),
            p90_s=seconds[len(seconds) * 9 // 10],
            per_sequence_s=total_s / max(sum(cost.num_sequences for cost in costs), 1),
            within_fraction=sum(cost.is_within for cost in costs) / len(costs),
        )


@dataclass(frozen=True, slots=True)
class Units:
    """Pieces of operations that workers carried out."""

    num_units: int
    num_stalls: int
    stalled_s: float
    """In stalls, all workers together."""
    longest_s: float
    num_lost: int
    """Intervals that found no room and are in no row."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a profile comes to. `units` and `overhead` are None where the executor does not tell what workers did."""

    executor: str
    num_workers: int
    num_steps: int
    num_rows: int
    num_sequences: int
    """Of all steps together."""
    elapsed_s: float
    idle_s: float
    rows: Mapping[str, float]
    """Seconds, by what they were spent on."""
    phases: Mapping[str, tuple[float, float]]
    """Of the engine's thread: seconds, and those of them in which no step ran."""
    units: Units | None
    overhead: Overhead | None
    trace: str | None
    """Its file; None: it could not be written."""
    num_slices: int
    trace_ends_s: float | None
    """Seconds after the start at which the trace was full; None: it has everything."""

    @property
    def busy_s(self) -> float:
        return self.elapsed_s - self.idle_s

    def json_object(self) -> dict[str, object]:
        return {
            "executor": self.executor,
            "workers": self.num_workers,
            "steps": self.num_steps,
            "rows": self.num_rows,
            "sequences": self.num_sequences,
            "elapsed_s": self.elapsed_s,
            "idle_s": self.idle_s,
            "time": {name: {"seconds": spent, "fraction": self._share(spent)} for name, spent in self.rows.items()},
            "python": {name: {"seconds": spent, "no_step_s": alone} for name, (spent, alone) in self.phases.items()},
            "units": _units_object(self.units),
            "overhead": _overhead_object(self.overhead),
            "trace": {"file": self.trace, "slices": self.num_slices, "ends_s": self.trace_ends_s},
        }

    def lines(self) -> list[str]:
        """The table for people."""
        workers = f"{self.num_workers} worker{'s' * (self.num_workers > 1)}"
        found = [
            f"profile   {self.num_steps:,} steps of {self.num_rows:,} rows in {self.busy_s:.2f} s on {self.executor}, "
            f"{workers}; idle {self.idle_s:.2f} s",
            f"          {'where the time went':<34}{'seconds':>10}{'share':>9}{'us a step':>11}",
        ]
        steps = max(self.num_steps, 1)
        found += [
            f"          {name:<34}{spent:>10.3f}{self._share(spent):>9.1%}{spent / steps * 1e6:>11.1f}"
            for name, spent in self.rows.items()
        ]
        spent = ", ".join(f"{name} {seconds / steps * 1e6:.0f}" for name, (seconds, _) in self.phases.items())
        found.append(f"python    us a step, beside running steps or not: {spent}")
        found += _unit_lines(self.units) + _overhead_lines(self.overhead)
        ends = "" if self.trace_ends_s is None else f"; it was full after {self.trace_ends_s:.1f} s, the table was not"
        if self.trace is not None:
            found.append(f"trace     {self.trace}: {self.num_slices:,} slices{ends}")
        return found

    def _share(self, seconds: float) -> float:
        return seconds / self.busy_s if self.busy_s > 0 else 0.0


def _unit_lines(units: Units | None) -> list[str]:
    if units is None:
        return ["units     this executor does not tell what its operations took"]
    lost = f"; LOST {units.num_lost:,} intervals, which are in no row" if units.num_lost else ""
    return [
        f"units     {units.num_units:,}, of them {units.num_stalls:,} stalls (longer than {STALL_S * 1e3:g} ms): "
        f"{units.stalled_s:.2f} s of the workers' time, the longest {units.longest_s * 1e3:.2f} ms{lost}"
    ]


def _overhead_lines(overhead: Overhead | None) -> list[str]:
    if overhead is None:
        return []
    return [
        f"overhead  outside kernels, ms a step: median {overhead.median_s * 1e3:.3f}, "
        f"mean {overhead.mean_s * 1e3:.3f}, p90 {overhead.p90_s * 1e3:.3f}; "
        f"{overhead.per_sequence_s * 1e6:.1f} us a sequence; "
        f"{overhead.within_fraction:.1%} of steps within {STEP_OVERHEAD_S * 1e3:g} ms + "
        f"{SEQUENCE_OVERHEAD_S * 1e6:g} us a sequence"
    ]


def _units_object(units: Units | None) -> dict[str, object] | None:
    if units is None:
        return None
    return {
        "units": units.num_units,
        "stalls": units.num_stalls,
        "stalled_s": units.stalled_s,
        "longest_s": units.longest_s,
        "lost": units.num_lost,
    }


def _overhead_object(overhead: Overhead | None) -> dict[str, object] | None:
    if overhead is None:
        return None
    return {
        "steps": overhead.num_steps,
        "median_s": overhead.median_s,
        "mean_s": overhead.mean_s,
        "p90_s": overhead.p90_s,
        "per_sequence_s": overhead.per_sequence_s,
        "within_fraction": overhead.within_fraction,
    }
