"""Cost model: the interface between those who choose steps and those who know how long a step takes.

Owns `StepPrice` and the `CostModel` protocol. Schedulers compare prices, the simulated executor lives by them.
Invariant: a price depends on its arguments alone, `expected_s <= worst_s`, and more share never costs more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from plait.core.step import StepShape


class Bound(StrEnum):
    """What most of a step's time is spent on."""

    COMPUTE = "compute"
    MEMORY = "memory"
    COMM = "comm"
    OVERHEAD = "overhead"


@dataclass(frozen=True, slots=True)
class StepPrice:
    expected_s: float
    worst_s: float
    """What a target that must not be missed has to be compared with: least favourable experts and neighbours."""
    bound: Bound


class CostModel(Protocol):
    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        """Price of a step on `share` share units while steps of the shapes `beside` run on the others."""
