"""Cache memory of the reference executor: one flat buffer, addressed by the layout and nothing else.

Owns the bytes of every block. Block b of group g lies at b * block_bytes, whoever it belongs to; inside it, per layer
slot and KV head, keys [head_dim_k][tokens], then values [tokens][head_dim_v]; of a state, per layer slot, part after
part. Knows nothing about sequences: callers bring block tables.
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
        self._keys: dict[GroupId, Floats] = {}  # [block, layer slot, head, d_k, token]
        self._values: dict[GroupId, Floats] = {}  # [block, layer slot, head, token, d_v]
        self._states: dict[GroupId, Floats] = {}  # [block, layer slot, numbers of all parts]
        self._parts: dict[GroupId, tuple[int, ...]] = {}
        for placed in layout.groups:
            if placed.cache_type is not CacheType.F32:
                raise ModelError(
                    f"cache group {placed.group.name} is of {placed.cache_type}; this executor keeps f32 only"
                )
            if placed.group.is_state:
                self._states[placed.group.id] = self._state_view(placed)
                self._parts[placed.group.id] = placed.group.state_parts
            else:
                self._keys[placed.group.id], self._values[placed.group.id] = self._views(placed)

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
        """Copy token slots of every layer of a group from one block into another; a state, whole."""
        if move.group in self._states:
            states = self._states[move.group]
            states[move.dst_block] = states[move.src_block]
            return
        source = slice(move.src_slot, move.src_slot + move.num_tokens)
        target = slice(move.dst_slot, move.dst_slot + move.num_tokens)
        keys, values = self._keys[move.group], self._values[move.group]
        keys[move.dst_block][..., target] = keys[move.src_block][..., source]
        values[move.dst_block][..., target, :] = values[move.src_block][..., source, :]

    def poison(self, group: GroupId, table: Sequence[BlockId], start: int) -> None:
        """Fill the slots of a table from `start` on with NaN; a state, if the sequence begins."""
        if group in self._states:
            if start == 0:
                self._states[group][list(table)] = np.nan
            return
        for block, inside, _ in self._pieces(group, table, range(start, len(table) * self._tokens[group])):
            self._keys[group][block][..., inside] = np.nan
            self._values[group][block][..., inside, :] = np.nan

    def state(self, group: GroupId, slot: int, part: int, block: BlockId) -> Floats:
        """One part of one layer's state, flat; a view: what is written into it stays."""
        parts = self._parts[group]
        first = sum(parts[:part])
        return self._states[group][block, slot, first : first + parts[part]]

    def _pieces(self, group: GroupId, table: Sequence[BlockId], slots: range) -> Iterator[tuple[BlockId, slice, slice]]:
        """Block by block: the block, the part of it that lies in `slots`, and that part counted from `slots.start`."""
        size = self._tokens[group]
        for entry in range(slots.start // size, -(-slots.stop // size)):
            first, end = max(slots.start, entry * size), min(slots.stop, (entry + 1) * size)
            inside = slice(first - entry * size, end - entry * size)
            yield table[entry], inside, slice(first - slots.start, end - slots.start)

    def _views(self, placed: GroupLayout) -> tuple[Floats, Floats]:
        group, size = placed.group, placed.tokens_per_block
        if group.kind not in (GroupKind.FULL, GroupKind.WINDOW, GroupKind.CHUNKED):
            raise ModelError(
                f"cache group {group.name} is {group.kind}; this executor keeps keys, values and states only"
            )
        key_span, value_span = group.head_dim_k * size, size * group.head_dim_v
        shape = (placed.num_blocks, group.num_layers, group.num_kv_heads, key_span + value_span)
        # Dividing the last axis of a view gives a view, behind which padding stays out.
        blocks = self._contents(placed).reshape(shape)
        keys = blocks[..., :key_span].reshape(*shape[:3], group.head_dim_k, size)
        values = blocks[..., key_span:].reshape(*shape[:3], size, group.head_dim_v)
        return keys, values

    def _state_view(self, placed: GroupLayout) -> Floats:
        return self._contents(placed).reshape(placed.num_blocks, placed.group.num_layers, -1)

    def _contents(self, placed: GroupLayout) -> Floats:
        """[block, numbers]"""
        content = placed.group.num_layers * placed.layer_bytes // FLOAT_BYTES
        return self._pool.reshape(placed.num_blocks, -1)[:, :content]
