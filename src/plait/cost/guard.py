"""Guard: how much slower decode may become beside a prefill, at worst.

Owns MuxWise's contention guard (ASPLOS 2026, section 3.3): a grid of cells, the largest slowdown that was seen in each,
and its update from steps that ran. An SLO needs a bound, not an exact prediction: worst = solo x slowdown of the cell.
Invariant: a slowdown is 1 or more, and observing can only raise it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from plait.core.step import StepShape
from plait.cost.fields import Fields
from plait.cost.solo import phases

LENGTHS = (2048, 8192, 32768, 131072)
"""MuxWise's prefill new tokens, prefill reused tokens and decode contexts."""
BATCH_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256)
"""About twenty; the paper names none of them."""


Corners = tuple[tuple[int, ...], ...]
"""Points of each axis of the table; the corners of a cell are the combinations."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A decode step on `share` units beside a prefill on the rest."""

    share: int
    new_tokens: float
    reused_tokens: float
    batch: float
    context: float
    """Of each request of the batch, on average."""


def pair_of(decode: StepShape, share: int, prefill: StepShape) -> Pair:
    """Guesses are rows of the batch: what they slow down does not depend on whether they are right."""
    chunks = decode.chunks
    return Pair(
        share,
        prefill.num_tokens,
        sum(chunk.start for chunk in prefill.chunks),
        max(1, decode.num_tokens),
        sum(chunk.start for chunk in chunks) / max(1, len(chunks)),
    )


def grid_points(shares: Sequence[int], batches: Sequence[int] = BATCH_SIZES) -> Iterator[Pair]:
    """What MuxWise measures: all pairs of lengths but (128K, 128K); 7,200 of them with six shares."""
    longest = (LENGTHS[-1], LENGTHS[-1])
    for share, new, reused, batch, context in product(shares, LENGTHS, LENGTHS, batches, LENGTHS):
        if (new, reused) != longest:
            yield Pair(share, new, reused, batch, context)


@dataclass(frozen=True, slots=True)
class GuardTable:
    """Largest slowdowns by point of the grid. What is seen counts at the next point up. A pair lies in the cell between
    points, and its slowdown is the largest at the cell's corners: erratic as slowdowns are, neither end bounds what is
    between. Beyond the outermost points those count; a cell that nothing was seen at has the largest slowdown of all.
    """

    shares: tuple[int, ...]
    new_tokens: tuple[float, ...]
    reused_tokens: tuple[float, ...]
    batch: tuple[float, ...]
    context: tuple[float, ...]
    cells: dict[tuple[int, int, int, int, int], float]

    @property
    def largest(self) -> float:
        return max(self.cells.values(), default=1.0)

    def cell(self, pair: Pair) -> tuple[int, int, int, int, int]:
        """The point at which what is seen of a pair counts."""
        a, b, c, d, e = (_point(edges, value) for edges, value in self._along(pair))
        return a, b, c, d, e

    def slowdown(self, pair: Pair) -> float:
        """At worst, of what was seen around."""
        return self.largest_of(self.around(pair))

    def around(self, pair: Pair) -> Corners:
        """The points around a pair, along each axis."""
        return tuple([_around(edges, value) for edges, value in self._along(pair)])

    def largest_of(self, around: Corners) -> float:
        return max((self.cells[one] for one in product(*around) if one in self.cells), default=self.largest)

    def _along(self, pair: Pair) -> tuple[tuple[Sequence[float], float], ...]:
        return (
            (self.shares, pair.share),
            (self.new_tokens, pair.new_tokens),
            (self.reused_tokens, pair.reused_tokens),
            (self.batch, pair.batch),
            (self.context, pair.context),
        )

    def observed(self, pair: Pair, slowdown: float) -> GuardTable:
        """The table with what was seen; itself if that is nothing new."""
        cell = self.cell(pair)
        if slowdown <= self.cells.get(cell, 0.0):
            return self
        kept = dict(self.cells)
        kept[cell] = max(1.0, slowdown)
        return GuardTable(self.shares, self.new_tokens, self.reused_tokens, self.batch, self.context, kept)

    def json_object(self) -> dict[str, object]:
        return {
            "shares": list(self.shares),
            "new_tokens": list(self.new_tokens),
            "reused_tokens": list(self.reused_tokens),
            "batch": list(self.batch),
            "context": list(self.context),
            "cells": [{"cell": list(cell), "slowdown": round(seen, 6)} for cell, seen in sorted(self.cells.items())],
        }


def guard_from(
    pairs: Iterable[tuple[Pair, float]],
    shares: Sequence[int],
    *,
    new_tokens: Sequence[float] = LENGTHS,
    reused_tokens: Sequence[float] = LENGTHS,
    batch: Sequence[float] = BATCH_SIZES,
    context: Sequence[float] = LENGTHS,
) -> GuardTable:
    """Cell maxima of (pair, slowdown) that were measured."""
    table = GuardTable(tuple(shares), tuple(new_tokens), tuple(reused_tokens), tuple(batch), tuple(context), {})
    cells: dict[tuple[int, int, int, int, int], float] = {}
    for pair, slowdown in pairs:
        cell = table.cell(pair)
        cells[cell] = max(1.0, slowdown, cells.get(cell, 1.0))
    return GuardTable(table.shares, table.new_tokens, table.reused_tokens, table.batch, table.context, cells)


def read_guard(fields: Fields) -> GuardTable:
    edges = ("new_tokens", "reused_tokens", "batch", "context")
    fields.only("shares", *edges, "cells")
    shares = tuple(int(value) for value in fields.numbers("shares", least=1))
    new, reused, batch, context = (fields.numbers(name) for name in edges)
    for name, found in (("shares", shares), *zip(edges, (new, reused, batch, context), strict=True)):
        if not found or list(found) != sorted(set(found)):
            raise fields.fault(name, "it must be numbers that ascend, at least one")
    sizes = (len(shares), len(new), len(reused), len(batch), len(context))
    cells = {}
    for one in fields.parts("cells"):
        one.only("cell", "slowdown")
        a, b, c, d, e = (int(value) for value in one.numbers("cell", count=5))
        if any(place >= size for place, size in zip((a, b, c, d, e), sizes, strict=True)):
            raise one.fault("cell", f"its places must lie below {', '.join(map(str, sizes))}")
        cells[a, b, c, d, e] = one.number("slowdown", least=1.0)
    return GuardTable(shares, new, reused, batch, context, cells)


def _point(edges: Sequence[float], value: float) -> int:
    return min(bisect_left(edges, value), len(edges) - 1)


def _around(edges: Sequence[float], value: float) -> tuple[int, ...]:
    """The points on both sides of a value; one, if it lies on it or beyond the last."""
    above = bisect_left(edges, value)
    if above == len(edges):
        return (above - 1,)
    return (above,) if above == 0 or edges[above] == value else (above - 1, above)


def prefill_beside(beside: Sequence[StepShape]) -> StepShape | None:
    """The prefill among the steps on the other units, if there is one."""
    return next((prefill for shape in beside if (prefill := phases(shape)[0]).chunks), None)
