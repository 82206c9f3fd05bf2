"""Calibrated: prices of a device on which steps of the model were measured.

Owns how a calibration meets the roofline: alpha by the state of the step, a guard against neighbours, the engine's own
overheads; and, in `LearningModel`, how steps that run move both. The roofline itself stays a pure function.
Invariant: a `CalibratedModel`'s price depends on its arguments alone; `expected_s <= worst_s`.

    expected = alpha(state) * roof + overhead                     a step of one phase
    alpha    = (a_p T_p + a_d T_d) / (T_p + T_d) * mixed          one of both, T their roofs apart
    worst    = alpha * roof alone * slowdown(cell) + overhead     decode beside a prefill, where there is a guard
             = expected * spread                                  else
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from plait.core.step import StepShape
from plait.cost.alpha import AlphaLine, state_of
from plait.cost.calibration import Calibration
from plait.cost.guard import Corners, GuardTable, Pair, pair_of, prefill_beside
from plait.cost.hardware import HardwareSpec
from plait.cost.model import StepPrice, both
from plait.cost.needs import REMEMBERED, later_step
from plait.cost.roofline import Roof, RooflineModel, price_of
from plait.cost.solo import phases
from plait.model.cost import Formats, Parallel
from plait.model.program import Program

LEARNING_RATE = 0.05
"""Of the way that a finished step moves the cells around it: one step in a hundred that was disturbed hardly shows."""
_CONTEXTS = 64
"""Contexts between which the factor of mixed steps is the same, so that it need not be looked up for each chunk anew.
"""
_MOST_MOVE = 2.0
"""A step that took more or less than so many times its price says no more than one that took that."""


class _Facts(NamedTuple):
    """What alpha, the guard and overheads ask of a shape, counted once for all of them."""

    prefill: StepShape
    decode: StepShape
    tokens: float
    context: float
    """Tokens before each of them, on average."""

    @classmethod
    def of(cls, shape: StepShape) -> _Facts:
        _, tokens, context, _ = state_of(shape, 0)
        return cls(*phases(shape), tokens, context)

    @property
    def is_decode(self) -> bool:
        return bool(self.decode.chunks)


class CalibratedModel:
    """Implements `plait.cost.model.CostModel`."""

    def __init__(self, roofline: RooflineModel, calibration: Calibration) -> None:
        self._roofline = roofline
        self._calibration = calibration
        self._lines: dict[tuple[float, float, float, bool], AlphaLine] = {}
        self._slowdowns: dict[Corners, float] = {}
        self._facts = lru_cache(REMEMBERED)(_Facts.of)
        self._mixed_at = lru_cache(REMEMBERED)(self._find_mixed)
        self._price = lru_cache(REMEMBERED)(self._compute)
        self._price_both = lru_cache(REMEMBERED)(self._compute_both)

    @property
    def hardware(self) -> HardwareSpec:
        return self._roofline.hardware

    @property
    def calibration(self) -> Calibration:
        return self._calibration

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        return self._price(shape, share, tuple(beside))

    def run_prices(self, shape: StepShape, share: int) -> Iterator[float]:
        """As `RooflineModel.run_prices`: exactly the numbers that `price` gives for the steps one by one."""
        if phases(shape)[0].chunks or not shape.chunks:
            return (self.price(later_step(shape, later), share).expected_s for later in count())
        overhead_s = self.overhead_s(shape)
        units, rows, _, _ = state_of(shape, share)
        line = self._line(units, rows, 0.0, is_decode=True)
        first = sum(chunk.start for chunk in shape.chunks)
        return (
            line.at((first + rows * later) / rows) * roof_s + overhead_s
            for later, roof_s in enumerate(self._roofline.run_roofs(shape, share))
        )

    def overhead_s(self, shape: StepShape) -> float:
        """Of the engine, which no share of the device makes shorter."""
        return self._overhead_s(len(shape.chunks), len(self._facts(shape).prefill.chunks))

    def _overhead_s(self, num_chunks: int, num_prompts: int) -> float:
        found = self._calibration
        return found.step_overhead_s + found.seq_overhead_s * num_chunks + found.prompt_overhead_s * num_prompts

    def alpha(self, shape: StepShape, share: int, beside: tuple[StepShape, ...] = ()) -> float:
        """Of a step of any phase."""
        if not shape.chunks:
            return 1.0
        prefill, decode, _, _ = self._facts(shape)
        if not prefill.chunks or not decode.chunks:
            return self._alpha_of_phase(shape, share, beside)
        return self._alpha_of_both(prefill, decode, share, beside)

    def _alpha_of_both(
        self, prefill: StepShape, decode: StepShape, share: int, beside: tuple[StepShape, ...] = ()
    ) -> float:
        prefill_s, decode_s = (self._roofline.roof(part, share, beside).seconds for part in (prefill, decode))
        both_s = prefill_s * self._alpha_of_phase(prefill, share, beside)
        both_s += decode_s * self._alpha_of_phase(decode, share, beside)
        return both_s / (prefill_s + decode_s) * self._mixed(prefill, decode, share)

    def _bound_of(
        self, shape: StepShape, share: int, beside: tuple[StepShape, ...], expected: Roof, alpha: float
    ) -> float:
        """Seconds that a step may take at worst, without overhead."""
        guard, facts = self._calibration.guard, self._facts(shape)
        if guard is not None and beside and facts.is_decode and not facts.prefill.chunks:
            prefill = next((part for one in beside if (part := self._facts(one).prefill).chunks), None)
            if prefill is not None:
                alone = self._roofline.roof(shape, share)
                return self.alpha(shape, share) * alone.worst_s * self._slowdown(guard, pair_of(shape, share, prefill))
        worst_s = expected.worst_s if guard is None or not beside else expected.seconds
        return alpha * worst_s * self._calibration.spread

    def _compute(self, shape: StepShape, share: int, beside: tuple[StepShape, ...]) -> StepPrice:
        roof, overhead_s = self._roofline.roof(shape, share, beside), self.overhead_s(shape)
        alpha = self.alpha(shape, share, beside)
        price = price_of(roof, alpha, overhead_s)
        worst_s = self._bound_of(shape, share, beside, roof, alpha) + overhead_s
        return StepPrice(price.expected_s, max(price.expected_s, worst_s), price.bound)

    def price_both(self, first: StepShape, second: StepShape, share: int) -> StepPrice:
        """As `plait.cost.model.pair_prices` has it."""
        return self._price_both(first, second, share)

    def _compute_both(self, first: StepShape, second: StepShape, share: int) -> StepPrice:
        if not first.chunks or not second.chunks:
            return self.price(first if first.chunks else second, share)
        parts = (self._facts(first), self._facts(second))
        decode, prefill = (parts[0].decode, parts[1].prefill)
        if parts[0].prefill.chunks or parts[1].decode.chunks:
            # Not decode and prompts, so that phases are not the two shapes.
            return self.price(both(first, second), share)
        roof = self._roofline.roof_of_both(decode, prefill, share)
        overhead_s = self._overhead_s(len(decode.chunks) + len(prefill.chunks), len(prefill.chunks))
        alpha = self._alpha_of_both(prefill, decode, share)
        price = price_of(roof, alpha, overhead_s)
        worst_s = alpha * roof.worst_s * self._calibration.spread + overhead_s
        return StepPrice(price.expected_s, max(price.expected_s, worst_s), price.bound)

    def _slowdown(self, guard: GuardTable, pair: Pair) -> float:
        around = guard.around(pair)
        known = self._slowdowns.get(around)
        if known is None:
            if len(self._slowdowns) >= REMEMBERED:
                self._slowdowns.clear()
            known = self._slowdowns[around] = guard.largest_of(around)
        return known

    def _alpha_of_phase(self, shape: StepShape, share: int, beside: tuple[StepShape, ...]) -> float:
        facts = self._facts(shape)
        others = sum([self._facts(one).tokens for one in beside]) if beside else 0.0
        return self._line(float(share), facts.tokens, others, is_decode=facts.is_decode).at(facts.context)

    def _line(self, share: float, tokens: float, beside: float, *, is_decode: bool) -> AlphaLine:
        key = (share, tokens, beside, is_decode)
        if key not in self._lines:
            if len(self._lines) >= REMEMBERED:
                self._lines.clear()
            self._lines[key] = self._calibration.alpha.line(share, tokens, beside, is_decode=is_decode)
        return self._lines[key]

    def _mixed(self, prefill: StepShape, decode: StepShape, share: int) -> float:
        if self._calibration.mixed is None:
            return 1.0
        context = int(self._facts(prefill).context) // _CONTEXTS * _CONTEXTS
        return self._mixed_at(prefill.num_tokens, decode.num_tokens, share, context)

    def _find_mixed(self, tokens: int, rows: int, share: int, context: int) -> float:
        grid = self._calibration.mixed
        assert grid is not None
        at = (share, tokens, rows, context)[: len(grid.axes)]
        near = [min(max(value, axis.knots[0]), axis.knots[-1]) for value, axis in zip(at, grid.axes, strict=True)]
        return grid.at(near)


@dataclass(frozen=True, slots=True)
class Observation:
    """A step that ran: what the model is told of it. `seconds` on the device, without the engine's overhead."""

    shape: StepShape
    share: int
    seconds: float
    beside: tuple[StepShape, ...] = ()


class LearningModel:
    """Implements `CostModel` with tables that finished steps move. Who owns it tells it of them in order.

    Equal observations in equal order give equal prices. Steps that were disturbed from outside move a cell by at most
    `rate` of the double.
    """

    def __init__(self, roofline: RooflineModel, calibration: Calibration, rate: float = LEARNING_RATE) -> None:
        self._roofline = roofline
        self._rate = rate
        self._model = CalibratedModel(roofline, calibration)

    @property
    def calibration(self) -> Calibration:
        """As it is by now."""
        return self._model.calibration

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        return self._model.price(shape, share, beside)

    def observe(self, seen: Observation) -> None:
        """Move alpha around the step's state, and raise the guard if the step was slower than it allows for."""
        model, calibration = self._model, self._model.calibration
        roof_s = self._roofline.roof(seen.shape, seen.share, seen.beside).seconds
        if not roof_s > 0 or not seen.seconds > 0:
            return
        factor = seen.seconds / (model.alpha(seen.shape, seen.share, seen.beside) * roof_s)
        factor = min(max(factor, 1.0 / _MOST_MOVE), _MOST_MOVE)
        alpha = calibration.alpha
        for part in phases(seen.shape):
            if part.chunks:
                target = factor * alpha.of(part, seen.share, seen.beside)
                alpha = alpha.moved(part, seen.share, seen.beside, target, self._rate)
        guard = self._guard_after(seen)
        self._model = CalibratedModel(self._roofline, replace(calibration, alpha=alpha, guard=guard))

    def _guard_after(self, seen: Observation) -> GuardTable | None:
        guard, prefill = self._model.calibration.guard, prefill_beside(seen.beside)
        if guard is None or prefill is None or phases(seen.shape)[0].chunks:
            return guard
        alone_s = self._model.alpha(seen.shape, seen.share) * self._roofline.roof(seen.shape, seen.share).seconds
        return guard.observed(pair_of(seen.shape, seen.share, prefill), seen.seconds / alone_s)


def cost_model(
    program: Program, formats: Formats, hardware: HardwareSpec, parallel: Parallel | None = None
) -> RooflineModel | CalibratedModel:
    """The best prices that a device's file allows: calibrated if it holds a calibration, else the bare roofline.

    Numbers are then counted as they were when it was calibrated.
    """
    calibration = hardware.calibration
    if calibration is None:
        return RooflineModel(program, formats, hardware, parallel)
    if calibration.counted is not None:
        formats = calibration.counted.formats(formats, program.num_parameters)
    roofline = RooflineModel(program, formats, hardware, parallel, bandwidth=calibration.bandwidth)
    return CalibratedModel(roofline, calibration)
