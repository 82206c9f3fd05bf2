"""Comparison: Plait and its peers in turn, and what may be concluded from it.

Owns the order A B B A, which cancels a machine that becomes steadily slower or faster, and the ratios. Measures
nothing itself.
Invariant: a ratio compares samples of one cycle only, and above 1 means that the first of the two is better.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from .figures import Figures
from .workloads import Workload


@dataclass(frozen=True, slots=True)
class Turn:
    """Visit `contender` (0 is Plait, 1 the peer) once and measure `times` times."""

    contender: int
    cycle: int
    times: int


def turns(num_cycles: int) -> list[Turn]:
    """A BB A of each cycle; a contender visited twice in a row is started once."""
    order = [(contender, cycle) for cycle in range(num_cycles) for contender in (0, 1, 1, 0)]
    return [Turn(contender, cycle, len(list(same))) for (contender, cycle), same in groupby(order)]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Over cycles. None of a cycle in which one of the two gave no figure is counted."""

    median: float
    least: float
    most: float
    num_cycles: int


def ratio(workload: Workload, first: Sequence[Sequence[Figures]], second: Sequence[Sequence[Figures]]) -> Ratio | None:
    """Of two contenders; `first` and `second` hold the samples of each cycle."""
    ratios: list[float] = []
    for ours, theirs in zip(first, second, strict=True):
        a, b = headlines(workload, ours), headlines(workload, theirs)
        if a and b:
            quotient = statistics.geometric_mean(a) / statistics.geometric_mean(b)
            ratios.append(quotient if workload.larger_is_better else 1 / quotient)
    if not ratios:
        return None
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def headlines(workload: Workload, samples: Sequence[Figures]) -> list[float]:
    """The headline figure of each sample that has one and lost nothing."""
    values = [
        one.values.get(workload.headline, math.nan) for one in samples if not one.num_errors and not one.num_short
    ]
    return [value for value in values if value > 0]


def fraction_of(workload: Workload, value: float, bound: float) -> float:
    """Which part of the limit a headline figure reaches."""
    return value / bound if workload.larger_is_better else bound / value
