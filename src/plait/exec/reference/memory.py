"""Cache memory of the reference executor: one flat buffer, addressed by the layout and nothing else.

Owns the bytes of every block. Block b of group g lies at b * block_bytes, whoever it belongs to; inside it, per layer
slot and KV head, keys [head_dim_k][tokens], then values [tokens][head_dim_v]. Knows nothing about sequences: callers
bring block tables.
Invariant: a slot that was never written may hold anything, NaN included, and nothing here hides that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from plait.core.errors import ModelError
from plait.core.ids import BlockId, GroupId
from plait.core.step import Move
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.cache_type import CacheType
from plait.model.program import GroupKind

Floats = npt.NDArray[np.float32]
FLOAT_BYTES = 4


class CacheMemory:
    """`poison` fills the pool with NaN first, so that a read of anything unwritten shows."""

    def __init__(self, layout: CacheLayout, *, poison: bool = False) -> None:
        count = layout.pool_bytes // FLOAT_BYTES
        self._pool: Floats = np.full(count, np.nan, np.float32) if poison else np.zeros(count, np.float32)
        self._tokens = [group.tokens_per_block for group in layout.groups]
        self._keys: list[Floats] = []
        self._values: list[Floats] = []
        for placed in layout.groups:
            keys, values = self._views(placed)
            self._keys.append(keys)  # [block, layer slot, head, d_k, token]
            self._values.append(values)  # [block, layer slot, head, token, d_v]

    def write(
        self, group: GroupId, slot: int, table: Sequence[BlockId], start: int, keys: Floats, values: Floats
    ) -> None:
        """Keep `keys` [n, heads, d_k] and `values` [n, heads, d_v] in slots [start, start + n) of the table."""
        for block, inside, rows in self._pieces(group, table, range(start, start + len(keys))):
            self._keys[group][block, slot][:, :, inside] = keys[rows].transpose(1, 2, 0)
            self._values[group][block, slot][:, inside] = values[rows].transpose(1, 0, 2)

    def read(
        self, group: GroupId, slot: int, table: Sequence[BlockId], seen: range, held: range
    ) -> tuple[Floats, Floats]:
        """Keys [heads, d_k, n] and values [heads, n, d_v] of the n slots in `held`, with zeros for those not in
        `seen`.
        """
        heads, width_k = self._keys[group].shape[2:4]
        width_v = self._values[group].shape[4]
        keys = np.zeros((heads, width_k, len(held)), np.float32)
        values = np.zeros((heads, len(held), width_v), np.float32)
        seen_keys, seen_values = keys[:, :, seen.start - held.start :], values[:, seen.start - held.start :]
        for block, inside, rows in self._pieces(group, table, seen):
            seen_keys[:, :, rows] = self._keys[group][block, slot][:, :, inside]
            seen_values[:, rows] = self._values[group][block, slot][:, inside]
        return keys, values

    def move(self, move: Move) -> None:
        """Copy token slots of every layer of a group from one block into another."""
        source = slice(move.src_slot, move.src_slot + move.num_tokens)
        target = slice(move.dst_slot, move.dst_slot + move.num_tokens)
        keys, values = self._keys[move.group], self._values[move.group]
        keys[move.dst_block][..., target] = keys[move.src_block][..., source]
        values[move.dst_block][..., target, :] = values[move.src_block][..., source, :]

    def poison(self, group: GroupId, table: Sequence[BlockId], start: int) -> None:
        """Fill the slots of a table from `start` on with NaN."""
        for block, inside, _ in self._pieces(group, table, range(start, len(table) * self._tokens[group])):
            self._keys[group][block][..., inside] = np.nan
            self._values[group][block][..., inside, :] = np.nan

    def _pieces(self, group: GroupId, table: Sequence[BlockId], slots: range) -> Iterator[tuple[BlockId, slice, slice]]:
        """Block by block: the block, the part of it that lies in `slots`, and that part counted from `slots.start`."""
        size = self._tokens[group]
        for entry in range(slots.start // size, -(-slots.stop // size)):
            first, end = max(slots.start, entry * size), min(slots.stop, (entry + 1) * size)
            inside = slice(first - entry * size, end - entry * size)
            yield table[entry], inside, slice(first - slots.start, end - slots.start)

    def _views(self, placed: GroupLayout) -> tuple[Floats, Floats]:
        group, size = placed.group, placed.tokens_per_block
        holds_keys = group.kind in (GroupKind.FULL, GroupKind.WINDOW, GroupKind.CHUNKED)
        if not holds_keys or placed.cache_type is not CacheType.F32:
            raise ModelError(
                f"cache group {group.name} is {group.kind} of {placed.cache_type}; this executor keeps keys and values "
                "of f32 only"
            )
        key_span, value_span = group.head_dim_k * size, size * group.head_dim_v
        shape = (placed.num_blocks, group.num_layers, group.num_kv_heads, key_span + value_span)
        content = group.num_layers * placed.layer_bytes // FLOAT_BYTES
        # Dividing the last axis of a view gives a view, behind which padding stays out.
        blocks = self._pool.reshape(placed.num_blocks, -1)[:, :content].reshape(shape)
        keys = blocks[..., :key_span].reshape(*shape[:3], group.head_dim_k, size)
        values = blocks[..., key_span:].reshape(*shape[:3], size, group.head_dim_v)
        return keys, values
