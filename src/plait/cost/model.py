"""Cost model: the interface between those who choose steps and those who know how long a step takes.

Owns `StepPrice` and the `CostModel` protocol. Schedulers compare prices, the simulated executor lives by them.
Invariant: a price depends on its arguments alone, `expected_s <= worst_s`, and more share never costs more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Protocol, runtime_checkable

from plait.core.step import ChunkShape, StepShape


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


@runtime_checkable
class RunPricer(Protocol):
    """A cost model that knows a shorter way to the prices of steps that follow each other."""

    def run_prices(self, shape: StepShape, share: int) -> Iterator[float]:
        """As the function of the same name."""


def run_prices(cost: CostModel, shape: StepShape, share: int) -> Iterator[float]:
    """Expected seconds of step after step, without end: the first of `shape`, and in each further one every chunk one
    token later. They are exactly the numbers that `cost.price` gives.
    """
    if isinstance(cost, RunPricer):
        return cost.run_prices(shape, share)
    return (cost.price(_later(shape, place), share).expected_s for place in count())


@runtime_checkable
class PairPricer(Protocol):
    """A cost model that knows a shorter way to the price of a step that is made of two."""

    def price_both(self, first: StepShape, second: StepShape, share: int) -> StepPrice:
        """As what `pair_prices` returns."""


def pair_prices(cost: CostModel) -> Callable[[StepShape, StepShape, int], StepPrice]:
    """Prices of steps of the chunks of two shapes, alone on a share: what `cost.price` gives for them, but for
    rounding. Whoever asks with many a second shape for the same first one need not have them counted together each
    time.
    """
    if isinstance(cost, PairPricer):
        return cost.price_both
    return lambda first, second, share: cost.price(both(first, second), share)


def both(first: StepShape, second: StepShape) -> StepShape:
    return StepShape((*first.chunks, *second.chunks), (*first.encoded_rows, *second.encoded_rows))


def _later(shape: StepShape, place: int) -> StepShape:
    chunks = (ChunkShape(one.start + place, one.num_tokens, one.num_outputs) for one in shape.chunks)
    return StepShape(tuple(chunks), shape.encoded_rows)
