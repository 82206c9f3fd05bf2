"""Turns: samples of several things that are compared, taken forwards and backwards in turn.

Owns the order, the length of a sample and what is made of the samples. Knows nothing about what is measured.
Invariant: everything in one call is sampled equally often, each time once on the way there and once on the way back, so
that a machine that becomes steadily slower or faster favours nobody; no sample is dropped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Take = Callable[[int], float]
"""Seconds of so many calls together."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long samples are and how many there are of each."""

    sample_s: float
    num_rounds: int
    """There and back again: two samples each."""
    takes_best: bool = False
    """The shortest sample instead of the median: for a look at a machine that others use, too."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of one call."""

    seconds: float
    """The median, or the shortest."""
    quarter: float
    three_quarters: float
    num_samples: int

    @property
    def iqr_fraction(self) -> float:
        return (self.three_quarters - self.quarter) / self.seconds if self.seconds else 0.0


def spread(samples: Iterable[float], *, takes_best: bool = False) -> Spread:
    values = sorted(samples)
    cuts = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Spread(values[0] if takes_best else cuts[1], cuts[0], cuts[2], len(values))


def in_turns(takes: Mapping[Key, Take], effort: Effort) -> dict[Key, Spread]:
    """Seconds of one call of each. A round before, not counted, warms up and finds how many calls make a sample."""
    num_calls = {key: _calls(take, effort.sample_s) for key, take in takes.items()}
    samples: dict[Key, list[float]] = {key: [] for key in takes}
    there = list(takes)
    for _ in range(effort.num_rounds):
        for key in [*there, *reversed(there)]:
            samples[key].append(takes[key](num_calls[key]) / num_calls[key])
    return {key: spread(values, takes_best=effort.takes_best) for key, values in samples.items()}


def _calls(take: Take, sample_s: float) -> int:
    take(1)
    return max(1, math.ceil(sample_s / max(take(1), 1e-9)))


def geomean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


def weighted_geomean(values: Mapping[int, float], weight: Callable[[int], float]) -> float:
    total = sum(weight(key) for key in values)
    return math.exp(sum(weight(key) * math.log(value) for key, value in values.items()) / total)
