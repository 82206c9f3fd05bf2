"""Waves: how much of a device idles because blocks do not fill its last round.

Owns the closed forms of Bullet (ASPLOS 2026, section 2.1 of what we keep of it): blocks go to the emptiest unit first,
all units of a wave wait for its end.
Invariant: 0 <= idle < 1; a grid that fills every wave idles 0.
"""

from __future__ import annotations

from math import ceil


def num_waves(blocks: int, units: int, per_unit: int = 1) -> int:
    """Rounds that `blocks` thread blocks take on `units` that run `per_unit` at once."""
    return ceil(blocks / (per_unit * units))


def idle_ratio(blocks: int, units: int, per_unit: int = 1) -> float:
    """Part of the units' time, over all waves, in which they have nothing to run. No blocks: nothing idles."""
    if blocks <= 0:
        return 0.0
    waves = num_waves(blocks, units, per_unit)
    # Units busy in the last wave; in one that is less than half full blocks still spread over units.
    tail = min(units, ceil(blocks / per_unit - units * (waves - 1)))
    return (units - tail) / (units * waves)


def gemm_blocks(rows: int, columns: int, tile_rows: int, tile_columns: int) -> int:
    """Blocks of a product with a result of [rows, columns]."""
    return ceil(rows / tile_rows) * ceil(columns / tile_columns)


def fitting_rows(rows: int, tile_rows: int) -> int:
    """Rows of the tile that a library takes for a product of few rows: a power of two, 16 at least."""
    return min(tile_rows, max(16, 1 << (rows - 1).bit_length()))


def attention_blocks(rows: int, heads: int, tile_rows: int) -> int:
    """Blocks of the attention of one sequence's `rows` query rows."""
    return heads * ceil(rows / tile_rows)
