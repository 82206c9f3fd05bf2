"""Publishing: full, accepted blocks of a sequence become nodes and pieces of the prefix index.

Owns the order in which that happens, and what becomes of checkpoints, behind blocks and inside them. Decides nothing
about who may publish.
Invariant: what is published is in the table of the sequence that computed it, and is never written again.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.ids import BlockId
from plait.kv.blocks import BlockPool
from plait.kv.hit import NO_BLOCK
from plait.kv.index import PrefixIndex
from plait.kv.keeps import Keeps, windows_of
from plait.kv.nodes import Node, Tokens
from plait.kv.tables import Checkpoint, SeqTable


class Publishing:
    """Into one index."""

    def __init__(
        self, pools: Sequence[BlockPool], index: PrefixIndex, keeps: Sequence[Keeps], tokens_per_block: int
    ) -> None:
        self.num_duplicates = 0
        """Blocks that were computed although an equal one had been published meanwhile."""
        self._pools = tuple(pools)
        self._index = index
        self._keeps = tuple(keeps)
        self._size = tokens_per_block
        self._windows = windows_of(keeps)
        self._has_parts = not all(one.keeps_all for one in keeps)

    def publish(self, table: SeqTable, at_s: float) -> None:
        """Turn the full blocks behind `table.node` into nodes.

        If an equal block was published meanwhile (two sequences computed it at once), the table keeps its own, which
        steps in flight may be reading; it stays private and is freed on release. The sequence references the published
        node all the same, so that what it publishes behind it cannot lose its parent.
        """
        for _ in range(len(table.tail) // self._size):
            self.publish_block(table, at_s)

    def publish_block(self, table: SeqTable, at_s: float) -> None:
        if table.checkpoints:
            self.publish_inner(table, at_s)
        size, at_s = self._size, at_s - table.behind_s
        key = tuple(table.tail[:size])
        del table.tail[:size]
        node = table.node.children.get(key)
        place = table.node.length // size
        if node is None:
            node = self._index.insert(table.node, key, self._whole_blocks(table, place), at_s)
        else:
            self._index.extend(node)
            self.num_duplicates += 1
        table.node = node
        if self._has_parts:
            self._attach(table, node, place, at_s)

    def _whole_blocks(self, table: SeqTable, place: int) -> tuple[BlockId, ...]:
        if not self._has_parts:
            return tuple(blocks[place] for blocks in table.blocks)
        of_groups = zip(self._keeps, table.blocks, strict=True)
        return tuple(blocks[place] if keeps.keeps_all else NO_BLOCK for keeps, blocks in of_groups)

    def _attach(self, table: SeqTable, node: Node, place: int, at_s: float) -> None:
        """Publish what a table has for a node's missing pieces."""
        for g in self._windows:
            block = table.blocks[g][place]
            if g not in node.pieces and block != NO_BLOCK and self._pools[g].is_private(block):
                self._index.attach(node, g, block, at_s)
        while table.checkpoints and table.checkpoints[0].length <= node.length:
            self._keep(table, table.checkpoints.pop(0), (), at_s)

    def publish_inner(self, table: SeqTable, at_s: float) -> None:
        """Checkpoints inside the block behind `table.node`, which need not be full, as far as it is committed."""
        most = min(self._size - 1, len(table.tail))
        while table.checkpoints and 0 < (count := table.checkpoints[0].length - table.node.length) <= most:
            self._keep(table, table.checkpoints.pop(0), tuple(table.tail[:count]), at_s - table.behind_s)

    def _keep(self, table: SeqTable, checkpoint: Checkpoint, inner: Tokens, at_s: float) -> None:
        """A checkpoint behind the node of a table and `inner` tokens is everybody's, if it was made and is new."""
        there = table.node.inner.get(inner, {}) if inner else table.node.pieces
        for g, block in checkpoint.blocks.items():
            if not checkpoint.is_written or g in there:
                self._pools[g].free(block)
                continue
            table.states[g] = self._index.attach(table.node, g, block, at_s, inner)
            self._index.give(table.states[g], at_s)
