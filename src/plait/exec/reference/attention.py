"""Attention of the reference executor: the canonical form of docs/concepts/numerics.md, tile by tile.

Owns the arithmetic for one chunk and one layer. Every chunk is treated the same, one row or five hundred. Rows are the
last axis of every array in here: products take them in whole row tiles, sums over slots run for all rows at once.
Invariant: a slot outside a row's visible range changes nothing in the row's result, whatever it holds, and another row
of the chunk changes nothing either.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.exec.reference.ops import ROW_TILE, padded
from plait.model.ops import KEY_TILE, Attend
from plait.model.visibility import Reach

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

LANES = 8
"""Sums over the slots of a tile that run beside each other; part of the canonical form."""


def whole_tiles(seen: range) -> range:
    """The slots of every key tile that holds one of `seen`."""
    return range(seen.start // KEY_TILE * KEY_TILE, -(-seen.stop // KEY_TILE) * KEY_TILE)


def attend(op: Attend, q: Floats, keys: Floats, values: Floats, first: int, start: int, sinks: Floats | None) -> Floats:
    """Rows of one chunk.

    q: [n, heads * d_k], the rows of slots start, start + 1, ...; keys: [kv_heads, d_k, m] and values: [kv_heads, m,
    d_v] of the whole tiles from slot `first` on, zeros where no row looks. Result: [n, heads * d_v].
    """
    num_rows = len(q)
    stacked = _stacked(op, q)  # [kv_heads, d_k, rows]: the query heads of a KV head share its keys
    num_stacked = stacked.shape[2]
    lows, highs = _visible(op, start, num_rows, num_stacked)
    best = np.full((op.kv_heads, 1, num_stacked), -np.inf, np.float32)
    total = np.zeros((op.kv_heads, 1, num_stacked), np.float32)
    out = np.zeros((op.kv_heads, op.head_dim_v, num_stacked), np.float32)
    if sinks is not None:
        best[:, 0, : _group(op) * num_rows] = np.repeat(sinks.reshape(op.kv_heads, -1), num_rows, axis=1)
        total[:] = 1
    for tile in range(0, keys.shape[2], KEY_TILE):
        slots = np.arange(first + tile, first + tile + KEY_TILE)[:, None]
        visible = (slots >= lows) & (slots < highs)
        of_tile = slice(tile, tile + KEY_TILE)
        best, total, out = _merge(op, stacked, keys[:, :, of_tile], values[:, of_tile], visible, best, total, out)
    return _unstacked(op, out / total, num_rows)


def _merge(
    op: Attend,
    q: Floats,
    keys: Floats,
    values: Floats,
    visible: Flags,
    best: Floats,
    total: Floats,
    out: Floats,
) -> tuple[Floats, Floats, Floats]:
    scores = _product(keys.swapaxes(1, 2), q) * np.float32(op.scale)
    if op.softcap is not None:
        cap = np.float32(op.softcap)
        scores = cap * np.tanh(scores / cap)
    if not visible.all():
        scores = np.where(visible, scores, np.float32(-np.inf))
    tile_best = _over_slots(np.maximum, scores)
    # A row that sees nothing of this tile has -inf here; 0 keeps exp finite and its weights are 0 either way.
    tile_base = np.where(np.isneginf(tile_best), np.float32(0), tile_best)
    weights = np.exp(scores - tile_base)
    new_best = np.maximum(best, tile_best)
    base = np.where(np.isneginf(new_best), np.float32(0), new_best)
    old_factor, tile_factor = np.exp(best - base), np.exp(tile_best - base)
    total = total * old_factor + _over_slots(np.add, weights) * tile_factor
    out = out * old_factor + _weighted(weights, values, visible) * tile_factor
    return new_best, total, out


def _weighted(weights: Floats, values: Floats, visible: Flags) -> Floats:
    """Per row the sum of the visible values by weight: [kv_heads, d_v, rows]."""
    sums = _product(values.swapaxes(1, 2), weights)
    for row in np.flatnonzero(~np.isfinite(sums).all(axis=(0, 1))):
        # 0 * NaN is NaN: a value that is not a number must reach only the rows that see it. The row is summed again in
        # a product of the same shape, so that the others, and this one without such values, have the same bits.
        seen = np.where(visible[:, row, None], values, np.float32(0))
        first = row - row % ROW_TILE
        sums[:, :, row] = _product(seen.swapaxes(1, 2), weights[:, :, first : first + ROW_TILE])[:, :, row - first]
    return sums


def _product(left: Floats, rows: Floats) -> Floats:
    """[heads, n, k] times [heads, k, rows]: [heads, n, rows], one matrix product for each head and row tile."""
    product = np.empty((*left.shape[:2], rows.shape[2]), np.float32)
    np.matmul(left[:, None], _row_tiles(rows), out=_row_tiles(product))
    return product


def _row_tiles(rows: Floats) -> Floats:
    """[heads, k, rows] seen as [heads, tiles, k, ROW_TILE]."""
    return rows.reshape(*rows.shape[:2], -1, ROW_TILE).swapaxes(1, 2)


def _over_slots(combine: np.ufunc, of_slots: Floats) -> Floats:
    """[heads, slots, rows] to [heads, 1, rows]: slots `LANES` apart one after another, then half of the lanes with the
    other half until one is left.
    """
    num_heads, num_slots, num_rows = of_slots.shape
    vectors = of_slots.reshape(num_heads, num_slots // LANES, LANES * num_rows)
    lanes: Floats = combine.reduce(vectors, axis=1).reshape(num_heads, LANES, num_rows)
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = combine(lanes[:, :half], lanes[:, half:])
    return lanes


def _visible(op: Attend, start: int, num_rows: int, num_stacked: int) -> tuple[Integers, Integers]:
    """Per stacked row: the visible slots are [low, high). Padding rows see the whole chunk: their sums are finite too,
    and dropped.
    """
    end = start + num_rows
    lows = np.full(num_stacked, op.visibility.first(start), np.int64)
    highs = np.full(num_stacked, end, np.int64)
    of_head = (_group(op), num_rows)
    used = _group(op) * num_rows
    lows[:used].reshape(of_head)[:] = [op.visibility.first(slot) for slot in range(start, end)]
    if op.visibility.reach is not Reach.ALL:
        highs[:used].reshape(of_head)[:] = range(start + 1, end + 1)
    return lows, highs


def _group(op: Attend) -> int:
    return op.heads // op.kv_heads


def _stacked(op: Attend, q: Floats) -> Floats:
    num_rows = len(q)
    used = _group(op) * num_rows
    stacked = np.zeros((op.kv_heads, op.head_dim_k, padded(used)), np.float32)
    heads = q.reshape(num_rows, op.kv_heads, _group(op), op.head_dim_k)
    stacked[:, :, :used] = heads.transpose(1, 3, 2, 0).reshape(op.kv_heads, op.head_dim_k, used)
    return stacked


def _unstacked(op: Attend, out: Floats, num_rows: int) -> Floats:
    heads = out[:, :, : _group(op) * num_rows].reshape(op.kv_heads, op.head_dim_v, _group(op), num_rows)
    return heads.transpose(3, 0, 2, 1).reshape(num_rows, op.heads * op.head_dim_v)
