"""Needs: what the operations of a step ask of a device, by shape, ready to be divided by its rates.

Owns the split of a step into attention, which alone depends on where chunks start, and the rest, which is equal for
every step of so many rows; and the blocks that work comes in, where they are counted. Knows no rate.
Invariant: the needs of a step add up to the costs of its program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from plait.core.step import ChunkShape, StepShape
from plait.cost.hardware import Tiles
from plait.cost.waves import attention_blocks, fitting_rows, gemm_blocks
from plait.model.cost import AttentionRates, CostSheet, KindRates, OpCost, Seen
from plait.model.ops import Attend, Linear, ValueId
from plait.model.visibility import Reach

# A plan is priced a few times while it is chosen and run, then hardly ever again.
REMEMBERED = 4096


class OpNeeds(NamedTuple):
    """Totals of one op over all spans of its kind. `numbers`: the format in which it is computed."""

    flops: float
    bytes: float
    worst_bytes: float
    comm_bytes: float
    numbers: str | None
    blocks: int = 0
    """That one of the spans' ops is cut into; 0: not counted."""


RestKey = tuple[int, int, int, int]
"""Tokens, outputs, chunks and snapshots of a step."""


class ProgramNeeds:
    """Of one program. `tiles`: count blocks as kernels cut them, and what a block leaves empty as work."""

    def __init__(self, sheet: CostSheet, tiles: Tiles | None = None) -> None:
        self._rest = _part_of(sheet, attention=False)
        self._attention = _part_of(sheet, attention=True)
        self._attend = self._attention.attention()
        self._sees_past = all(one.visibility.reach is not Reach.ALL for one in self._attend)
        self._heads = [
            (rates.op.heads, rates.op.kv_heads)
            for kind in self._attention.kinds
            for rates in kind.rates
            if isinstance(rates.op, Attend)
        ]
        self._columns = [columns for kind in self._rest.kinds for columns in _launched_columns(kind)]
        self._tiles = tiles
        self.rest = lru_cache(REMEMBERED)(self._count_rest)
        # One shape is priced on several shares, and beside others, before one of them is chosen.
        self.attention = lru_cache(REMEMBERED)(self._count_attention)
        self.seen = lru_cache(REMEMBERED)(self._see)
        self.rest_key = lru_cache(REMEMBERED)(rest_key)
        self.is_sparse = any(cost.worst_factor > 1.0 for cost in self._rest.costs(StepShape((ChunkShape(0, 2, 2),))))
        """Whether some rows choose which weights they need."""

    def _see(self, shape: StepShape) -> tuple[Seen, ...]:
        return tuple([one.seen(shape.chunks) for one in self._attend])

    def _count_attention(self, shape: StepShape) -> tuple[OpNeeds, ...]:
        needs = self._attention_needs(self.seen(shape), self.rest_key(shape)[0])
        if self._tiles is None:
            return needs
        rows = [chunk.num_tokens for chunk in shape.chunks if not chunk.is_decode]
        tile_rows = self._tiles.attention_rows
        return tuple(
            one._replace(blocks=sum(attention_blocks(num_rows, heads, tile_rows) for num_rows in rows))
            for one, (heads, _) in zip(needs, self._heads, strict=True)
        )

    def attention_of_both(self, first: StepShape, second: StepShape) -> tuple[OpNeeds, ...]:
        """What `attention` gives for a step of the chunks of both, but for blocks, which are not counted."""
        pairs = zip(self.seen(first), self.seen(second), strict=True)
        rows = self.rest_key(first)[0] + self.rest_key(second)[0]
        return self._attention_needs([one.beside(other) for one, other in pairs], rows)

    def _attention_needs(self, seen: Iterable[Seen], rows: int) -> tuple[OpNeeds, ...]:
        return tuple([_attention_of(one, part, rows) for one, part in zip(self._attend, seen, strict=True)])

    def attention_of_run(self, shape: StepShape) -> Iterator[tuple[OpNeeds, ...]]:
        """What `attention` gives for step after step, without end: the first of `shape`, and in each further one every
        chunk a token later.
        """
        if not self._sees_past or any(chunk.num_tokens > 1 for chunk in shape.chunks):
            return (self.attention(later_step(shape, later)) for later in count())
        slots, rows = [chunk.start for chunk in shape.chunks], len(shape.chunks)
        totals = [one.visibility.totals_of_run(slots) for one in self._attend]
        return (self._attention_needs([Seen(0, 0.0, next(keys)) for keys in totals], rows) for _ in count())

    def _count_rest(self, key: RestKey) -> tuple[OpNeeds, ...]:
        """All but attention: of any step with these counts."""
        tokens, outputs, chunks, snapshots = key
        if not chunks:
            return ()
        ones = [ChunkShape(0, 1, 0)] * (chunks - 1)
        shape = StepShape((ChunkShape(0, tokens - len(ones), outputs, snapshots), *ones))
        costs = self._rest.costs(shape)
        if self._tiles is None:
            return tuple(map(needs_of, costs))
        return tuple(_tiled(cost, columns, self._tiles) for cost, columns in zip(costs, self._columns, strict=True))


def rest_key(shape: StepShape) -> RestKey:
    return shape.num_tokens, shape.num_outputs, len(shape.chunks), shape.num_snapshots


def later_step(shape: StepShape, later: int) -> StepShape:
    """The step in which every chunk stands so many tokens further."""
    return replace(shape, chunks=tuple(chunk._replace(start=chunk.start + later) for chunk in shape.chunks))


def _part_of(sheet: CostSheet, *, attention: bool) -> CostSheet:
    kinds = [replace(k, rates=tuple(r for r in k.rates if isinstance(r.op, Attend) == attention)) for k in sheet.kinds]
    return replace(sheet, kinds=tuple(kinds))


def needs_of(cost: OpCost) -> OpNeeds:
    moved = cost.cache_read + cost.cache_write + cost.activation_bytes
    return OpNeeds(
        flops=cost.count * cost.flops,
        bytes=cost.count * (moved + cost.weight_bytes),
        worst_bytes=cost.count * (moved + cost.weight_bytes * cost.worst_factor),
        comm_bytes=cost.count * cost.comm_bytes,
        numbers=cost.numbers,
    )


def _attention_of(one: AttentionRates, seen: Seen, rows: int) -> OpNeeds:
    flops, moved = one.cost(seen, rows)
    return OpNeeds(flops, moved, moved, 0.0, one.rates.numbers)


def _launched_columns(kind: KindRates) -> list[int]:
    """Of each op: columns of the product that kernels make of it and of those that multiply the same rows. Queries,
    keys and values are one product, as a gate and what it gates are.
    """
    widths: dict[ValueId, int] = {}
    for rates in kind.rates:
        if isinstance(rates.op, Linear):
            widths[rates.op.inputs[0]] = widths.get(rates.op.inputs[0], 0) + rates.n
    return [widths[rates.op.inputs[0]] if isinstance(rates.op, Linear) else 0 for rates in kind.rates]


def _tiled(cost: OpCost, columns: int, tiles: Tiles) -> OpNeeds:
    """A product's flops are its part of whole blocks. Experts are left: how their rows divide is data."""
    needs = needs_of(cost)
    if not columns or not cost.m:
        return needs
    rows = fitting_rows(cost.m, tiles.gemm_rows)
    blocks = gemm_blocks(cost.m, columns, rows, tiles.gemm_columns)
    padded = 2.0 * blocks * rows * tiles.gemm_columns * cost.k * cost.n / columns
    return needs._replace(flops=cost.count * padded, blocks=blocks)


def totals(needs: Sequence[OpNeeds]) -> tuple[float, float]:
    """(flops, bytes) of all of them."""
    return sum(op.flops for op in needs), sum(op.bytes for op in needs)
