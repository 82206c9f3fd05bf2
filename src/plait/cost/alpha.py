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
    before = sum(chunk.start * chunk.num_tokens for chunk in shape.chunks)
    return float(share), float(tokens), before / max(1, tokens), float(sum(other.num_tokens for other in beside))


def alpha_axes(
    shares: Sequence[float], tokens: Sequence[float], context: Sequence[float], beside: Sequence[float] = (0.0,)
) -> tuple[Axis, ...]:
    """Share is linear, the others are logarithmic."""
    return (
        Axis("share", tuple(shares)),
        Axis("tokens", tuple(tokens), is_log=True),
        Axis("context", tuple(context), is_log=True),
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
        grid = self.decode if _is_decode(shape) else self.prefill
        return alpha_at(grid, state_of(shape, share, beside))

    def moved(self, shape: StepShape, share: int, beside: Sequence[StepShape], alpha: float, rate: float) -> AlphaTable:
        """With the cells around the step's state `rate` of the way nearer to what was measured."""
        state = state_of(shape, share, beside)
        if _is_decode(shape):
            return replace(self, decode=self.decode.moved(state, alpha, rate))
        return replace(self, prefill=self.prefill.moved(state, alpha, rate))

    def json_object(self) -> dict[str, object]:
        return {"prefill": self.prefill.json_object(), "decode": self.decode.json_object()}


def alpha_at(grid: Grid, state: State) -> float:
    found = grid.at(state)
    if grid.contains(state):
        return found
    return min(max(found, min(LEAST, *grid.values)), max(MOST, *grid.values))


def read_alpha(fields: Fields) -> AlphaTable:
    fields.only("prefill", "decode")
    tables = []
    for name in ("prefill", "decode"):
        grid = read_grid(fields.part(name), AXES)
        if min(grid.values) <= 0:
            raise fields.fault(name, "every value must be above 0")
        tables.append(grid)
    return AlphaTable(*tables)


def _is_decode(shape: StepShape) -> bool:
    return bool(phases(shape)[1].chunks)
