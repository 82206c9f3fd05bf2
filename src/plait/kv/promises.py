"""Promises: memory that sequences which compute their prompts will still need, and what may be given to others.

Owns how far groups that do not keep everything run ahead of what is committed. Groups that keep everything are reserved
to the end of a prompt; a window is not, or a long prompt would hold what it gives up a moment later. So it is promised.
Invariant: while everybody keeps to promises, a prompt that was started can always go on by a few blocks (H10): what
trunks keep (`PrefixIndex.keep`) is given up before such a prompt would have to stop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from plait.core.ids import SeqId
from plait.kv.hit import Hit
from plait.kv.keeps import Keeps, KeepsRows, windows_of
from plait.kv.room import Room
from plait.kv.tables import SeqTable


class Promises:
    """Over the tables of all living sequences."""

    def __init__(
        self,
        room: Room,
        keeps: Sequence[Keeps],
        tables: Mapping[SeqId, SeqTable],
        tokens_per_block: int,
        keep_less: Callable[[], bool],
    ) -> None:
        """`keep_less`: makes more memory obtainable, without need of which it is kept; False if there is no more."""
        self._room = room
        self._keep_less = keep_less
        self._keeps = tuple(keeps)
        self._tables = tables
        self._size = tokens_per_block
        self._windows = windows_of(keeps)
        self._of_images = [isinstance(one, KeepsRows) for one in keeps]

    def wanted(self, table: SeqTable, num_tokens: int, reach: int) -> list[int]:
        """Blocks of each group that a table still needs."""
        size = self._size
        kept, followed = -(-num_tokens // size), -(-reach // size)
        return [
            max(0, (kept if keeps.keeps_all else 1 if keeps.is_state else 0 if of_images else followed) - len(blocks))
            for keeps, blocks, of_images in zip(self._keeps, table.blocks, self._of_images, strict=True)
        ]

    def fits(self, hit: Hit, num_tokens: int, num_growing: int) -> bool:
        """See `KVCache.fits`."""
        extra = self.made()
        for g, keeps in enumerate(self._keeps):
            extra[g] += 0 if keeps.is_state or self._of_images[g] else num_growing
        return self._room.fits(hit, num_tokens, extra)

    def extent(self, table: SeqTable, num_tokens: int, end: int) -> int:
        """See `KVCache.extent`."""
        if end <= table.num_slots:
            return end
        size, have = self._size, table.num_slots // self._size
        promised = self.made(table)

        def is_short(count: int) -> bool:
            wanted = self.wanted(table, num_tokens, count * size)
            return not self._room.is_obtainable([want + more for want, more in zip(wanted, promised, strict=True)])

        found = bisect_right(range(have + 1, -(-end // size) + 1), False, key=is_short)
        if not found:
            # Nothing beyond others' promises: a block may be had all the same.
            promised = [0] * len(self._keeps)
            # A prompt goes on before anything is kept for others; an answer may have to stop for it.
            is_prompt = table.planned_end < table.num_prompt
            while (is_stuck := is_short(have + 1)) and is_prompt and self._keep_less():
                pass
            found = int(not is_stuck)
        return min(end, (have + found) * size)

    def made(self, but: SeqTable | None = None) -> list[int]:
        """Blocks that sequences which compute their prompts will still need in groups that follow step by step."""
        promised = [0] * len(self._keeps)
        for table in self._tables.values() if self._windows else ():
            if table is not but and table.target - table.num_committed > self._size:
                needed = self._room.needed(table.target)
                for g in self._windows:
                    promised[g] += max(0, needed[g] - table.num_held(g))
        return promised
