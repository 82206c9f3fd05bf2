"""Attention of the reference executor: the canonical form of docs/concepts/numerics.md, tile by tile.

Owns the arithmetic for one chunk and one layer. Every chunk is treated the same, one row or five hundred; there is no
mask tensor, only the visible range of each row. Invariant: keys behind a row's visible range are never part of a sum,
whatever they hold.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.exec.reference.ops import padded
from plait.model.ops import KEY_TILE, Attend
from plait.model.visibility import Reach

Floats = npt.NDArray[np.float32]


def first_visible(op: Attend, start: int) -> int:
    """The lowest slot that any row of a chunk starting at `start` sees, rounded down to a key tile."""
    return op.visibility.first(start) // KEY_TILE * KEY_TILE


def attend(op: Attend, q: Floats, keys: Floats, values: Floats, first: int, start: int, sinks: Floats | None) -> Floats:
    """Rows of one chunk.

    q: [n, heads * d_k], the rows of slots start, start + 1, ...; keys: [kv_heads, d_k, m] and values: [kv_heads, m,
    d_v] of slots first, first + 1, ...; `first` is a multiple of KEY_TILE, first + m the end of the chunk. Result:
    [n, heads * d_v].
    """
    num_rows = len(q)
    stacked = _stacked(op, q)  # [kv_heads, rows, d_k]: the query heads of a KV head share its keys
    lows, highs = _visible(op, start, num_rows, first + keys.shape[2], stacked.shape[1])
    shape = (op.kv_heads, stacked.shape[1])
    best = np.full(shape, -np.inf, np.float32)
    total = np.zeros(shape, np.float32)
    out = np.zeros((*shape, op.head_dim_v), np.float32)
    if sinks is not None:
        best[:, : _group(op) * num_rows] = np.repeat(sinks.reshape(op.kv_heads, -1), num_rows, axis=1)
        total[:] = 1
    for tile in range(0, keys.shape[2], KEY_TILE):
        tile_keys, tile_values = _tile(keys[:, :, tile : tile + KEY_TILE], values[:, tile : tile + KEY_TILE])
        slots = np.arange(first + tile, first + tile + KEY_TILE)
        visible = (slots >= lows[:, None]) & (slots < highs[:, None])
        best, total, out = _merge(op, stacked, tile_keys, tile_values, visible, best, total, out)
    divisor: Floats = np.where(total == 0, np.float32(1), total)  # padding rows saw nothing
    return _unstacked(op, out / divisor[:, :, None], num_rows)


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
    scores = (q @ keys) * np.float32(op.scale)
    if op.softcap is not None:
        cap = np.float32(op.softcap)
        scores = cap * np.tanh(scores / cap)
    scores = np.where(visible, scores, np.float32(-np.inf))
    tile_best = scores.max(axis=2)
    # A row that sees nothing of this tile has -inf here; 0 keeps exp finite and its weights are 0 either way.
    tile_base = np.where(np.isneginf(tile_best), np.float32(0), tile_best)
    weights = np.exp(scores - tile_base[:, :, None])
    new_best = np.maximum(best, tile_best)
    base = np.where(np.isneginf(new_best), np.float32(0), new_best)
    old_factor, tile_factor = np.exp(best - base), np.exp(tile_best - base)
    total = total * old_factor + weights.sum(axis=2) * tile_factor
    out = out * old_factor[:, :, None] + (weights @ values) * tile_factor[:, :, None]
    return new_best, total, out


def _tile(keys: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Whole tiles only, so that products have one shape; keys behind the end are zeros and not visible."""
    missing = KEY_TILE - keys.shape[2]
    if missing == 0:
        return np.ascontiguousarray(keys), np.ascontiguousarray(values)
    return np.pad(keys, ((0, 0), (0, 0), (0, missing))), np.pad(values, ((0, 0), (0, missing), (0, 0)))


def _visible(
    op: Attend, start: int, num_rows: int, end: int, num_stacked: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Per stacked row: the visible slots are [low, high). Padding rows see nothing."""
    slots = range(start, start + num_rows)
    lows = np.zeros(num_stacked, np.int64)
    highs = np.zeros(num_stacked, np.int64)
    used = _group(op) * num_rows
    lows[:used] = np.tile([op.visibility.first(slot) for slot in slots], _group(op))
    sees_all = op.visibility.reach is Reach.ALL
    highs[:used] = np.tile([end if sees_all else slot + 1 for slot in slots], _group(op))
    return lows, highs


def _group(op: Attend) -> int:
    return op.heads // op.kv_heads


def _stacked(op: Attend, q: Floats) -> Floats:
    num_rows = len(q)
    used = _group(op) * num_rows
    stacked = np.zeros((op.kv_heads, padded(used), op.head_dim_k), np.float32)
    heads = q.reshape(num_rows, op.kv_heads, _group(op), op.head_dim_k)
    stacked[:, :used] = heads.transpose(1, 2, 0, 3).reshape(op.kv_heads, used, op.head_dim_k)
    return stacked


def _unstacked(op: Attend, out: Floats, num_rows: int) -> Floats:
    heads = out[:, : _group(op) * num_rows].reshape(op.kv_heads, _group(op), num_rows, op.head_dim_v)
    return heads.transpose(2, 0, 1, 3).reshape(num_rows, op.heads * op.head_dim_v)
