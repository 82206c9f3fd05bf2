"""Cache memory of the reference executor: one flat buffer, addressed by the layout and nothing else.

Owns the bytes of every block. Block b of group g lies at b * block_bytes, whoever it belongs to; inside it, per layer
slot and KV head, keys [head_dim_k][tokens], then values [tokens][head_dim_v]. Knows nothing about sequences: callers
bring block tables.
Invariant: a slot that was never written may hold anything, NaN included, and nothing here hides that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from plait.core.errors import ModelError
from plait.core.ids import BlockId, GroupId
from plait.core.step import Move
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.program import GroupKind

Floats = npt.NDArray[np.float32]
FLOAT_BYTES = 4


class CacheMemory:
    """`poison` fills the pool with NaN first, so that a read of anything unwritten shows."""

    def __init__(self, layout: CacheLayout, *, poison: bool = False) -> None:
        count = layout.page_bytes * layout.num_pages // FLOAT_BYTES
        self._pool: Floats = np.full(count, np.nan, np.float32) if poison else np.zeros(count, np.float32)
        self._tokens = [group.tokens_per_block for group in layout.groups]
        self._keys: list[Floats] = []
        self._values: list[Floats] = []
        for placed in layout.groups:
            keys, values = self._views(placed)
            self._keys.append(keys)
            self._values.append(values)

    def write(
        self, group: GroupId, slot: int, table: Sequence[BlockId], start: int, keys: Floats, values: Floats
    ) -> None:
        """Keep `keys` [n, heads, d_k] and `values` [n, heads, d_v] in slots [start, start + n) of the table."""
        blocks, places = self._places(group, table, start, start + len(keys))
        self._keys[group][blocks, slot, :, :, places] = keys
        self._values[group][blocks, slot, :, places, :] = values

    def read(self, group: GroupId, slot: int, table: Sequence[BlockId], first: int, end: int) -> tuple[Floats, Floats]:
        """Keys [heads, d_k, n] and values [heads, n, d_v] of slots [first, end), n = end - first."""
        size = self._tokens[group]
        blocks = np.asarray(table[first // size : (end - 1) // size + 1])
        skipped = first % size
        keys = self._keys[group][blocks, slot]  # [blocks, heads, d_k, size]
        values = self._values[group][blocks, slot]  # [blocks, heads, size, d_v]
        heads, width_k, width_v = keys.shape[1], keys.shape[2], values.shape[3]
        keys = keys.transpose(1, 2, 0, 3).reshape(heads, width_k, -1)
        values = values.transpose(1, 0, 2, 3).reshape(heads, -1, width_v)
        taken = slice(skipped, skipped + end - first)
        return keys[:, :, taken], values[:, taken]

    def move(self, move: Move) -> None:
        """Copy token slots of every layer of a group from one block into another."""
        source = slice(move.src_slot, move.src_slot + move.num_tokens)
        target = slice(move.dst_slot, move.dst_slot + move.num_tokens)
        keys, values = self._keys[move.group], self._values[move.group]
        keys[move.dst_block][..., target] = keys[move.src_block][..., source]
        values[move.dst_block][..., target, :] = values[move.src_block][..., source, :]

    def poison(self, group: GroupId, table: Sequence[BlockId], start: int) -> None:
        """Fill the slots of a table from `start` on with NaN."""
        end = len(table) * self._tokens[group]
        if start < end:
            blocks, places = self._places(group, table, start, end)
            self._keys[group][blocks, :, :, :, places] = np.nan
            self._values[group][blocks, :, :, places, :] = np.nan

    def _places(
        self, group: GroupId, table: Sequence[BlockId], start: int, end: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        slots = np.arange(start, end)
        size = self._tokens[group]
        first = start // size
        blocks = np.asarray(table[first : (end - 1) // size + 1], np.int64)
        return blocks[slots // size - first], slots % size

    def _views(self, placed: GroupLayout) -> tuple[Floats, Floats]:
        group, size = placed.group, placed.tokens_per_block
        if group.kind not in (GroupKind.FULL, GroupKind.WINDOW, GroupKind.CHUNKED) or placed.dtype_bytes != FLOAT_BYTES:
            raise ModelError(
                f"cache group {group.name} is {group.kind} with {placed.dtype_bytes} bytes a number; this executor "
                "keeps float32 keys and values only"
            )
        key_span, value_span = group.head_dim_k * size, size * group.head_dim_v
        shape = (placed.num_blocks, group.num_layers, group.num_kv_heads, key_span + value_span)
        blocks = self._pool[: int(np.prod(shape))].reshape(shape)
        keys = blocks[..., :key_span].reshape(*shape[:3], group.head_dim_k, size)
        values = blocks[..., key_span:].reshape(*shape[:3], size, group.head_dim_v)
        return keys, values
