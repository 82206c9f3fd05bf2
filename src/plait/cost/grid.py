"""Grid: numbers that were measured at the crossings of a few axes, and what lies between and beyond them.

Owns multilinear interpolation, linear extrapolation, and the update of the cells around a new measurement.
Invariant: at a crossing the value is the one that is kept there; between crossings it lies among those around it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from plait.core.errors import UsageError
from plait.cost.fields import Fields


@dataclass(frozen=True, slots=True)
class Axis:
    """`knots` ascend. On a logarithmic axis log2(1 + x) is what is linear, so lengths that double are equally far."""

    name: str
    knots: tuple[float, ...]
    is_log: bool = False

    def __post_init__(self) -> None:
        if not self.knots or any(low >= high for low, high in pairwise(self.knots)):
            raise UsageError(f"axis {self.name} has knots {self.knots}; they must ascend, and there must be one")

    def scaled(self, value: float) -> float:
        return math.log2(1.0 + max(0.0, value)) if self.is_log else value

    def contains(self, value: float) -> bool:
        return self.knots[0] <= value <= self.knots[-1]

    def between(self, value: float, *, beyond: bool) -> tuple[int, float]:
        """(knot below, part of the way to the next); `beyond`: the part may leave 0 .. 1 at the ends."""
        if len(self.knots) == 1:
            return 0, 0.0
        low = min(max(0, bisect_right(self.knots, value) - 1), len(self.knots) - 2)
        at, after = self.scaled(self.knots[low]), self.scaled(self.knots[low + 1])
        part = (self.scaled(value) - at) / (after - at)
        return low, part if beyond else min(1.0, max(0.0, part))


@dataclass(frozen=True, slots=True)
class Grid:
    """`values` in row-major order: the last axis runs fastest."""

    axes: tuple[Axis, ...]
    values: tuple[float, ...]
    range: tuple[float, float] = field(default=(0.0, 0.0), init=False, compare=False, repr=False)
    """Of the values."""

    def __post_init__(self) -> None:
        count = math.prod(len(axis.knots) for axis in self.axes)
        if len(self.values) != count:
            raise UsageError(f"a grid of {count} crossings has {len(self.values)} values; give one for each")
        object.__setattr__(self, "range", (min(self.values), max(self.values)))

    @classmethod
    def filled(cls, axes: Sequence[Axis], value: float) -> Grid:
        return cls(tuple(axes), (value,) * math.prod(len(axis.knots) for axis in axes))

    def at(self, point: Sequence[float]) -> float:
        """Multilinear between crossings; beyond the outermost ones the last two go on in a straight line."""
        return sum(weight * self.values[cell] for cell, weight in self.around(point, beyond=True))

    def along(self, place: int, point: Sequence[float]) -> tuple[float, ...]:
        """At every knot of the axis at `place`, all else being as at `point`, which lies at that axis' first knot."""
        step = math.prod([len(axis.knots) for axis in self.axes[place + 1 :]])
        around, values = self.around(point, beyond=True), self.values
        return tuple(
            sum([weight * values[cell + knot * step] for cell, weight in around])
            for knot, _ in enumerate(self.axes[place].knots)
        )

    def contains(self, point: Sequence[float]) -> bool:
        return all(axis.contains(value) for axis, value in zip(self.axes, point, strict=True))

    def around(self, point: Sequence[float], *, beyond: bool = False) -> list[tuple[int, float]]:
        """(place in `values`, weight) of the crossings around a point; weights add up to 1."""
        found: list[tuple[int, float]] = [(0, 1.0)]
        for axis, value in zip(self.axes, point, strict=True):
            low, part = axis.between(value, beyond=beyond)
            ways = ((low, 1.0 - part), (low + 1, part)) if part else ((low, 1.0),)
            size = len(axis.knots)
            found = [(cell * size + knot, weight * share) for cell, weight in found for knot, share in ways]
        return found

    def moved(self, point: Sequence[float], value: float, rate: float) -> Grid:
        """Each crossing around the point goes `rate` times its weight of the way to `value`: exponential averaging."""
        values = list(self.values)
        for cell, weight in self.around(point):
            values[cell] += rate * weight * (value - values[cell])
        return Grid(self.axes, tuple(values))

    def json_object(self) -> dict[str, object]:
        axes = [{"name": axis.name, "knots": list(axis.knots), "log": axis.is_log} for axis in self.axes]
        return {"axes": axes, "values": [round(value, 9) for value in self.values]}


def read_grid(fields: Fields, names: Sequence[str], *, least: float = 0.0) -> Grid:
    """A grid of a file whose axes have these names, in this order."""
    fields.only("axes", "values")
    axes: list[Axis] = []
    for place, one in enumerate(fields.parts("axes")):
        one.only("name", "knots", "log")
        knots = one.numbers("knots")
        if not knots or any(low >= high for low, high in pairwise(knots)):
            raise one.fault("knots", "they must ascend, and there must be one")
        axes.append(Axis(one.text("name"), knots, one.flag("log")))
        if place >= len(names) or axes[-1].name != names[place]:
            raise one.fault("name", f"the axes must be {', '.join(names)}")
    if len(axes) != len(names):
        raise fields.fault("axes", f"the axes must be {', '.join(names)}")
    count = math.prod(len(axis.knots) for axis in axes)
    return Grid(tuple(axes), fields.numbers("values", least=least, count=count))
