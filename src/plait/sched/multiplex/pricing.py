"""Pricing: what the candidates of a decision would take, asked of the cost model.

Owns the questions. Prices themselves, and whether they were asked before, are `plait.cost`'s.
Invariant: nothing is priced on no unit, and nothing beside a neighbour that does not run.
"""

from __future__ import annotations

from plait.core.step import ChunkShape, StepShape
from plait.cost.model import Bound, CostModel, StepPrice, pair_prices
from plait.cost.partitions import layers_to_launch
from plait.sched.multiplex.situation import Prefill, Prompt


class Prices:
    """Of one device. `num_spans`: pieces between which a prefill can be interrupted; `stop_s`: how soon it is, where
    that is sooner than at the end of a span.
    """

    def __init__(self, cost: CostModel, units: int, num_spans: int, stop_s: float | None = None) -> None:
        self._cost = cost
        self._price_both = pair_prices(cost)
        self.units = units
        self.num_spans = num_spans
        self._stop_s = stop_s

    def decode(self, shape: StepShape, units: int, beside: StepShape | None = None) -> StepPrice:
        """Of a whole decode step, on so many units."""
        return self._cost.price(shape, units, () if beside is None or units == self.units else (beside,))

    def prefill_s(self, shape: StepShape, units: int, beside: StepShape | None = None) -> float:
        """Of a whole prefill, as is to be expected."""
        beside = None if beside is None or not beside.chunks or units == self.units else beside
        return self._cost.price(shape, units, () if beside is None else (beside,)).expected_s

    def prompt_s(self, prompt: Prompt, units: int) -> float:
        """Of a prompt by itself."""
        return self._cost.price(shape_of((prompt,)), units).expected_s

    def fused(self, decode: StepShape, prompts: StepShape) -> StepPrice:
        return self._price_both(decode, prompts, self.units)

    def is_bound_by_compute(self, shape: StepShape, units: int) -> bool:
        return self._cost.price(shape, units).bound is Bound.COMPUTE

    def spans_beside(self, decode_s: float, prefill_s: float) -> int:
        """N_PL (MuxWise, ASPLOS 2026, section 3.4)."""
        return layers_to_launch(decode_s, prefill_s, self.num_spans)

    def span_s(self, prefill_s: float) -> float:
        return prefill_s / self.num_spans

    def stop_s(self, prefill_s: float) -> float:
        """Until a prefill that has begun can be stopped: no turn of prompts is shorter."""
        return prefill_s / self.num_spans if self._stop_s is None else self._stop_s

    def spans_left(self, prefill: Prefill) -> float:
        return prefill.left * self.num_spans


def shape_of(prompts: tuple[Prompt, ...]) -> StepShape:
    """Of a prefill of all of them."""
    return StepShape(tuple(ChunkShape(one.start, one.num_tokens, 1) for one in prompts))


def cut(prompts: tuple[Prompt, ...], num_tokens: int) -> StepShape:
    """Of the first so many tokens of them."""
    chunks = []
    for one in prompts:
        if num_tokens <= 0:
            break
        taken = min(one.num_tokens, num_tokens)
        chunks.append(ChunkShape(one.start, taken, 1 if taken == one.num_tokens else 0))
        num_tokens -= taken
    return StepShape(tuple(chunks))
