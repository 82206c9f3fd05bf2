"""Guard: how much slower decode may become beside a prefill, at worst.

Owns MuxWise's contention guard (ASPLOS 2026, section 3.3): a grid of cells, the largest slowdown that was seen in each,
and its update from steps that ran. An SLO needs a bound, not an exact prediction: worst = solo x slowdown of the cell.

Where steps scatter for reasons of their own, as on cores that others use too, the largest of a cell is its most
disturbed sample. There a cell keeps what is usual in it, and one factor for all of them (`spread`) says how far all but
one in a hundred steps stay from what is usual.
Invariant: a slowdown is 1 or more, and one step moves it by a twentieth at most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from plait.core.step import StepShape
from plait.cost.fields import Fields
from plait.cost.solo import phases

LENGTHS = (2048, 8192, 32768, 131072)
"""MuxWise's prefill new tokens, prefill reused tokens and decode contexts."""
BATCH_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256)
"""About twenty; the paper names none of them."""
BOUNDED_PART = 0.99
"""Of steps, that are to keep to their bound."""
MOST_SPREAD = 100.0
"""A bound beyond that bounds nothing; the machine was not at work on steps."""
_RATE = 0.05
"""Of a slowdown, that a step moves it by at most."""

Cell = tuple[int, int, int, int, int]
"""A point of the table: of each axis its place."""
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

    With a `spread`, usual slowdowns, and a pair's is the mean of those at the corners times the spread.
    """

    shares: tuple[int, ...]
    new_tokens: tuple[float, ...]
    reused_tokens: tuple[float, ...]
    batch: tuple[float, ...]
    context: tuple[float, ...]
    cells: dict[Cell, float]
    spread: float | None = None
    """Of all but one in a hundred steps, by what is usual; None: cells hold largest slowdowns."""

    @property
    def largest(self) -> float:
        return max(self.cells.values(), default=1.0)

    def cell(self, pair: Pair) -> Cell:
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
        seen = [self.cells[one] for one in product(*around) if one in self.cells] or [self.largest]
        return max(seen) if self.spread is None else max(1.0, self.spread * sum(seen) / len(seen))

    def _along(self, pair: Pair) -> tuple[tuple[Sequence[float], float], ...]:
        return (
            (self.shares, pair.share),
            (self.new_tokens, pair.new_tokens),
            (self.reused_tokens, pair.reused_tokens),
            (self.batch, pair.batch),
            (self.context, pair.context),
        )

    def observed(self, pair: Pair, slowdown: float) -> GuardTable:
        """The table with what was seen. A step that took longer than its bound raises it by a twentieth, one that did
        not lowers it by so much less that in the long run one in a hundred is longer; so what a single disturbed step
        did is forgotten after a hundred others. Usual slowdowns go a twentieth of the way to what was seen.
        """
        cell = self.cell(pair)
        by = _RATE * (BOUNDED_PART if slowdown > self.slowdown(pair) else BOUNDED_PART - 1.0)
        kept, spread = dict(self.cells), self.spread
        if cell not in kept:
            kept[cell] = max(1.0, slowdown if spread is None else slowdown / spread)
        elif spread is None:
            kept[cell] = max(1.0, kept[cell] * (1.0 + by))
        else:
            usual = kept[cell]
            kept[cell] = usual + _RATE * (min(slowdown, spread * usual) - usual)
            spread = max(1.0, spread * (1.0 + by))
        return replace(self, cells=kept, spread=spread)

    def json_object(self) -> dict[str, object]:
        kept = {} if self.spread is None else {"spread": self.spread}
        return kept | {
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
    cells: dict[Cell, float] = {}
    for pair, slowdown in pairs:
        cell = table.cell(pair)
        cells[cell] = max(1.0, slowdown, cells.get(cell, 1.0))
    return GuardTable(table.shares, table.new_tokens, table.reused_tokens, table.batch, table.context, cells)


def read_guard(fields: Fields) -> GuardTable:
    edges = ("new_tokens", "reused_tokens", "batch", "context")
    fields.only("shares", *edges, "cells", "spread")
    shares = tuple(int(value) for value in fields.numbers("shares", least=1))
    new, reused, batch, context = (fields.numbers(name) for name in edges)
    for name, found in (("shares", shares), *zip(edges, (new, reused, batch, context), strict=True)):
        if not found or list(found) != sorted(set(found)):
            raise fields.fault(name, "it must be numbers that ascend, at least one")
    sizes = (len(shares), len(new), len(reused), len(batch), len(context))
    spread = fields.number("spread", least=1.0, most=MOST_SPREAD) if fields.has("spread") else None
    cells = {}
    for one in fields.parts("cells"):
        one.only("cell", "slowdown")
        a, b, c, d, e = (int(value) for value in one.numbers("cell", count=5))
        if any(place >= size for place, size in zip((a, b, c, d, e), sizes, strict=True)):
            raise one.fault("cell", f"its places must lie below {', '.join(map(str, sizes))}")
        cells[a, b, c, d, e] = one.number("slowdown", least=1.0 if spread is None else 0.0, above=spread is not None)
    return GuardTable(shares, new, reused, batch, context, cells, spread)


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
