"""Interleaved: steps whose decode attention runs beside the products of other sequences (NanoFlow, OSDI 2025, and
BlendServe, ASPLOS 2026).

Owns the price of such a step: two halves of it take turns, one at the products while the other reads its keys, so that
a step takes what takes longer and a part of the other. Which steps there are is not its business.
Invariant: a step is never dearer than one after the other, which a device may always do.

    t = alpha * (max(products, attention) + gamma * min(products, attention)) + overhead

Products read weights once for each half. The attention of prompts, which is bound by computing, counts with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count

from plait.core.errors import UsageError
from plait.core.step import StepShape
from plait.cost.density import step_s
from plait.cost.hardware import HardwareSpec
from plait.cost.model import StepPrice
from plait.cost.needs import REMEMBERED, later_step
from plait.cost.roofline import RooflineModel
from plait.cost.solo import phases

INTERFERENCE = 0.3
"""gamma: with it depth-first order reaches the 71.7 % of the practical optimum that BlendServe reports."""


class InterleavedModel:
    """Implements `plait.cost.model.CostModel`. `interference` is gamma, from 0 to 1."""

    def __init__(self, roofline: RooflineModel, interference: float = INTERFERENCE) -> None:
        if not 0 <= interference <= 1:
            raise UsageError(f"interference is {interference}; it must be between 0 and 1")
        self._roofline = roofline
        self._interference = interference
        self._price = lru_cache(REMEMBERED)(self._compute)

    @property
    def hardware(self) -> HardwareSpec:
        return self._roofline.hardware

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        """Steps on several shares are not interleaved as well: beside others it is the roofline's price."""
        return self._roofline.price(shape, share, beside) if beside else self._price(shape, share)

    def run_prices(self, shape: StepShape, share: int) -> Iterator[float]:
        """As `RooflineModel.run_prices`."""
        if not shape.chunks or phases(shape)[0].chunks:
            return (self.price(later_step(shape, later), share).expected_s for later in count())
        serial = self._roofline.run_prices(shape, share)
        parts = self._roofline.run_parts(shape, share)
        overhead_s = self._roofline.overhead_s(shape)
        return (
            min(whole, self._seconds(products, attention) + overhead_s)
            for whole, (products, attention) in zip(serial, parts, strict=True)
        )

    def _compute(self, shape: StepShape, share: int) -> StepPrice:
        serial = self._roofline.price(shape, share)
        if not shape.chunks:
            return serial
        expected_s = self._seconds(*self._roofline.parts(shape, share)) + self._roofline.overhead_s(shape)
        # At worst the halves do not meet.
        return replace(serial, expected_s=min(serial.expected_s, expected_s))

    def _seconds(self, products: float, attention: float) -> float:
        return self._roofline.alpha * step_s(products, attention, self._interference)
