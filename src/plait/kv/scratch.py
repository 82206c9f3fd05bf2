"""Scratch: copies of a sequence's states behind rows that may be rejected, so that states can be taken back.

Owns them from the plan of a step with drafts until its result: the copy behind the last accepted row becomes the
running state, without being copied again, and the others are free. They are blocks of the states' groups and count as
the sequence's own. Knows no drafts.
Invariant: a table has one running state, scratch only while a step in flight writes it, and the block that was the
running state before is nobody else's until the executor has been told of the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, SeqId
from plait.kv.blocks import BlockPool
from plait.kv.owners import tail_of
from plait.kv.promises import Promises
from plait.kv.room import Room
from plait.kv.tables import SeqTable


class Scratch:
    """Of all sequences of one memory."""

    def __init__(
        self,
        pools: Sequence[BlockPool],
        states: Sequence[int],
        tables: Mapping[SeqId, SeqTable],
        room: Room,
        promises: Promises,
        make_room: Callable[[Sequence[int]], bool],
    ) -> None:
        self._pools = tuple(pools)
        self._states = tuple(states)
        self._tables = tables
        self._room = room
        self._promises = promises
        self._make_room = make_room

    def take(self, seq: SeqId, first: int, count: int) -> list[tuple[int, GroupId, BlockId]] | None:
        """Blocks for copies behind `first`, `first` + 1, ... tokens, `count` of them, in every group of states:
        (length, group, block), ascending. None: there is no memory beyond what everybody will need next.
        """
        table = self._tables[seq]
        if table.scratch or table.writing:
            raise InvariantError(f"sequence {seq} takes scratch states while a step in flight names it")
        demand = [count if g in self._states else 0 for g in range(len(self._pools))]
        extra = self._promises.made()
        for g, pool in enumerate(self._pools):
            extra[g] += demand[g] + (len(self._tables) if pool.layout.tokens_per_block else 0)
        if not self._room.is_obtainable(extra) or not self._make_room(demand):
            return None
        frugal = self._room.is_frugal(demand)
        blocks = {g: self._pools[g].grant(tail_of(seq), count, frugal) for g in self._states}
        table.scratch = {first + at: {g: blocks[g][at] for g in self._states} for at in range(count)}
        return [(length, GroupId(g), block) for length, of in table.scratch.items() for g, block in of.items()]

    def give_back(self, seq: SeqId) -> None:
        """No step was made that writes them."""
        table = self._tables[seq]
        for blocks in table.scratch.values():
            self._free(blocks)
        table.scratch = {}

    def settle(self, seq: SeqId, length: int) -> bool:
        """The step has ended, and the sequence goes on behind `length` tokens. Whether its running state is another
        block now, which the executor has to be told (`KVCache.reserve` does).
        """
        table = self._tables[seq]
        chosen = table.scratch.pop(length, None)
        if chosen is not None:
            for g, block in chosen.items():
                table.stale.append((g, table.blocks[g][0]))
                table.blocks[g][0] = block
                table.num_granted[g] = 0
        self.give_back(seq)
        return chosen is not None

    def told(self, table: SeqTable) -> None:
        """A step in flight has told the executor which block is the running state."""
        for g, block in table.stale:
            self._pools[g].free(block)
        table.stale.clear()

    def _free(self, blocks: Mapping[int, BlockId]) -> None:
        for g, block in blocks.items():
            self._pools[g].free(block)
