"""Alpha: measured time over roofline time, by the state of a step.

Owns the two grids of Bullet's calibration factor (ASPLOS 2026, section 2.3), one for prefill and one for decode, and
what a state is. Interpolated linearly; a state outside the grid is extrapolated and kept within limits.
Invariant: alpha is positive; at a measured state it is what was measured there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait.core.step import StepShape
from plait.cost.fields import Fields
from plait.cost.grid import Axis, Grid, read_grid
from plait.cost.solo import phases

LEAST, MOST = 0.8, 4.0
"""Of an alpha that is extrapolated, unless measured ones lie beyond."""

AXES = ("share", "tokens", "context", "beside")

State = tuple[float, float, float, float]
"""Share units; tokens of the step (rows, in decode); tokens before each on average; tokens of the steps beside it."""


def state_of(shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> State:
    tokens = shape.num_tokens
    before = sum([chunk.start * chunk.num_tokens for chunk in shape.chunks])
    return float(share), float(tokens), before / max(1, tokens), float(sum(other.num_tokens for other in beside))


def alpha_axes(
    shares: Sequence[float], tokens: Sequence[float], context: Sequence[float], beside: Sequence[float] = (0.0,)
) -> tuple[Axis, ...]:
    """Share and context are linear, as what a step reads is; numbers of tokens are logarithmic."""
    return (
        Axis("share", tuple(shares)),
        Axis("tokens", tuple(tokens), is_log=True),
        Axis("context", tuple(context)),
        Axis("beside", tuple(beside), is_log=True),
    )


def constant_alpha(alpha: float = 1.0) -> AlphaTable:
    """The same everywhere."""
    grid = Grid.filled(alpha_axes((1.0,), (1.0,), (0.0,)), alpha)
    return AlphaTable(grid, grid)


@dataclass(frozen=True, slots=True)
class AlphaTable:
    prefill: Grid
    decode: Grid

    def of(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> float:
        """Of a step of one phase. One with chunks of both is no state: see `plait.cost.calibrated`."""
        units, tokens, context, others = state_of(shape, share, beside)
        return self.line(units, tokens, others, is_decode=is_decode(shape)).at(context)

    def line(self, share: float, tokens: float, beside: float, *, is_decode: bool) -> AlphaLine:
        """Alpha over the context, all else being equal: what a run of decode steps goes along."""
        grid = self.decode if is_decode else self.prefill
        at_share, at_tokens, at_context, at_beside = grid.axes
        inside = at_share.contains(share) and at_tokens.contains(tokens) and at_beside.contains(beside)
        values = grid.along(AXES.index("context"), (share, tokens, at_context.knots[0], beside))
        least, most = grid.range
        return AlphaLine(at_context, values, inside, min(LEAST, least), max(MOST, most))

    def moved(self, shape: StepShape, share: int, beside: Sequence[StepShape], alpha: float, rate: float) -> AlphaTable:
        """With the cells around the step's state `rate` of the way nearer to what was measured."""
        state = state_of(shape, share, beside)
        if is_decode(shape):
            return replace(self, decode=self.decode.moved(state, alpha, rate))
        return replace(self, prefill=self.prefill.moved(state, alpha, rate))

    def json_object(self) -> dict[str, object]:
        return {"prefill": self.prefill.json_object(), "decode": self.decode.json_object()}


@dataclass(frozen=True, slots=True)
class AlphaLine:
    """`is_inside`: all but the context lies within what was measured."""

    context: Axis
    values: tuple[float, ...]
    is_inside: bool
    least: float
    most: float

    def at(self, context: float) -> float:
        low, part = self.context.between(context, beyond=True)
        value = self.values[low]
        found = value + part * (self.values[low + 1] - value) if part else value
        if self.is_inside and self.context.contains(context):
            return found
        return min(max(found, self.least), self.most)


def read_alpha(fields: Fields) -> AlphaTable:
    fields.only("prefill", "decode")
    tables = []
    for name in ("prefill", "decode"):
        grid = read_grid(fields.part(name), AXES)
        if min(grid.values) <= 0:
            raise fields.fault(name, "every value must be above 0")
        tables.append(grid)
    return AlphaTable(*tables)


def is_decode(shape: StepShape) -> bool:
    return bool(phases(shape)[1].chunks)
