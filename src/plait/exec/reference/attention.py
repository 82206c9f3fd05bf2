"""Attention of the reference executor: the canonical form of docs/concepts/numerics.md, tile by tile.

Owns the arithmetic for one chunk and one layer. Every chunk is treated the same, one row or five hundred.
Invariant: a slot outside a row's visible range changes nothing in the row's result, whatever it holds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.exec.reference.ops import ROW_TILE, padded
from plait.model.ops import KEY_TILE, Attend
from plait.model.visibility import Reach

Floats = npt.NDArray[np.float32]


def whole_tiles(seen: range) -> range:
    """The slots of every key tile that holds one of `seen`."""
    return range(seen.start // KEY_TILE * KEY_TILE, -(-seen.stop // KEY_TILE) * KEY_TILE)


def attend(op: Attend, q: Floats, keys: Floats, values: Floats, first: int, start: int, sinks: Floats | None) -> Floats:
    """Rows of one chunk.

    q: [n, heads * d_k], the rows of slots start, start + 1, ...; keys: [kv_heads, d_k, m] and values: [kv_heads, m,
    d_v] of the whole tiles from slot `first` on, zeros where no row looks. Result: [n, heads * d_v].
    """
    lanes = _in_lanes(op, q)
    lows, highs = _visible(op, start, len(q), lanes.shape[1])
    shape = (op.kv_heads, lanes.shape[1], ROW_TILE)
    best = np.full(shape, -np.inf, np.float32)
    total = np.zeros(shape, np.float32)
    out = np.zeros((*shape[:2], op.head_dim_v, ROW_TILE), np.float32)
    if sinks is not None:
        of_rows = np.repeat(sinks.reshape(op.kv_heads, -1), len(q), axis=1)
        best.reshape(op.kv_heads, -1)[:, : of_rows.shape[1]] = of_rows
        total[:] = 1
    for tile in range(0, keys.shape[2], KEY_TILE):
        slots = np.arange(first + tile, first + tile + KEY_TILE)[:, None]
        visible = (slots >= lows[:, None]) & (slots < highs[:, None])
        of_tile = slice(tile, tile + KEY_TILE)
        best, total, out = _merge(op, lanes, keys[:, :, of_tile], values[:, of_tile], visible, best, total, out)
    return _out_of_lanes(op, out / total[:, :, None], len(q))


def _merge(
    op: Attend,
    q: Floats,
    keys: Floats,
    values: Floats,
    visible: npt.NDArray[np.bool_],
    best: Floats,
    total: Floats,
    out: Floats,
) -> tuple[Floats, Floats, Floats]:
    scores = (keys.swapaxes(1, 2)[:, None] @ q) * np.float32(op.scale)  # [kv_heads, tiles of rows, KEY_TILE, lanes]
    if op.softcap is not None:
        cap = np.float32(op.softcap)
        scores = cap * np.tanh(scores / cap)
    if not visible.all():
        scores = np.where(visible, scores, np.float32(-np.inf))
    tile_best = _folded(np.maximum, scores)
    # A row that sees nothing of this tile has -inf here; 0 keeps exp finite and its weights are 0 either way.
    tile_base = np.where(np.isneginf(tile_best), np.float32(0), tile_best)
    weights = np.exp(scores - tile_base[:, :, None])
    new_best = np.maximum(best, tile_best)
    base = np.where(np.isneginf(new_best), np.float32(0), new_best)
    old_factor, tile_factor = np.exp(best - base), np.exp(tile_best - base)
    total = total * old_factor + _folded(np.add, weights) * tile_factor
    out = out * old_factor[:, :, None] + _weighted(weights, values, visible) * tile_factor[:, :, None]
    return new_best, total, out


def _folded(combine: np.ufunc, of_keys: Floats) -> Floats:
    """All keys [kv_heads, tiles, KEY_TILE, lanes] in one, half onto half: in an order that depends on nothing else."""
    while of_keys.shape[2] > 1:
        half = of_keys.shape[2] // 2
        of_keys = combine(of_keys[:, :, :half], of_keys[:, :, half:])
    return of_keys[:, :, 0]


def _weighted(weights: Floats, values: Floats, visible: npt.NDArray[np.bool_]) -> Floats:
    """Per row the sum of the visible values by weight."""
    sums: Floats = values.swapaxes(1, 2)[:, None] @ weights
    if not np.isfinite(sums).all():
        # 0 * NaN is NaN: a value that is not a number must reach only the rows that see it.
        for tile, lane in np.ndindex(sums.shape[1], ROW_TILE):
            seen = visible[tile, :, lane]
            sums[:, tile, :, lane] = (weights[:, tile, seen, lane][:, None] @ values[:, seen])[:, 0]
    return sums


def _visible(
    op: Attend, start: int, num_rows: int, num_tiles: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Per tile and lane: the visible slots are [low, high). Padding rows see all of the chunk: their sums are finite
    too, and dropped.
    """
    end = start + num_rows
    lows = np.full(num_tiles * ROW_TILE, op.visibility.first(start), np.int64)
    highs = np.full(num_tiles * ROW_TILE, end, np.int64)
    of_head = (_group(op), num_rows)
    used = _group(op) * num_rows
    lows[:used].reshape(of_head)[:] = [op.visibility.first(slot) for slot in range(start, end)]
    if op.visibility.reach is not Reach.ALL:
        highs[:used].reshape(of_head)[:] = range(start + 1, end + 1)
    return lows.reshape(num_tiles, ROW_TILE), highs.reshape(num_tiles, ROW_TILE)


def _group(op: Attend) -> int:
    """The query heads of a KV head, which share its keys."""
    return op.heads // op.kv_heads


def _in_lanes(op: Attend, q: Floats) -> Floats:
    """[kv_heads, tiles, d_k, lanes]: the rows of a KV head's query heads one after another, as columns of tiles."""
    num_rows = len(q)
    used = _group(op) * num_rows
    stacked = np.zeros((op.kv_heads, padded(used), op.head_dim_k), np.float32)
    heads = q.reshape(num_rows, op.kv_heads, _group(op), op.head_dim_k)
    stacked[:, :used] = heads.transpose(1, 2, 0, 3).reshape(op.kv_heads, used, op.head_dim_k)
    tiles = stacked.reshape(op.kv_heads, -1, ROW_TILE, op.head_dim_k)
    return np.ascontiguousarray(tiles.swapaxes(2, 3))


def _out_of_lanes(op: Attend, out: Floats, num_rows: int) -> Floats:
    stacked = out.swapaxes(2, 3).reshape(op.kv_heads, -1, op.head_dim_v)
    heads = stacked[:, : _group(op) * num_rows].reshape(op.kv_heads, _group(op), num_rows, op.head_dim_v)
    return heads.transpose(2, 0, 1, 3).reshape(num_rows, op.heads * op.head_dim_v)
