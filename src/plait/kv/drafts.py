"""Drafts: what a draft model keeps of sequences, on pages of the one pool.

Owns block tables of the draft model's cache groups, by sequence, and the blocks in them. Their pages belong to
`draft(sequence)` (docs/adr/0021). Nothing of them is published, and everything may be computed again, so whatever no
step in flight names goes before anybody waits or is preempted for want of memory.
Invariant: a block that a step in flight names is neither granted nor given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, SeqId, StepId
from plait.core.step import BlockGrant
from plait.kv.blocks import BlockPool, BlockState
from plait.kv.index import PrefixIndex
from plait.kv.owners import draft_of
from plait.kv.pages import PagePool
from plait.kv.report import GroupReport, counts_of, group_report
from plait.kv.room import Room
from plait.kv.rules import MemoryRules
from plait.model.cache_layout import CacheLayout, GroupLayout


@dataclass(slots=True, eq=False)
class _Table:
    seq: SeqId
    blocks: list[list[BlockId]]
    """By group."""
    num_tokens: int = 0
    """That were reserved: slots that a step has filled or fills."""
    steps: set[StepId] = field(default_factory=set)
    """Those in flight that name it."""


class DraftTables:
    """See the module. `drafts`: the draft model's groups, cut from the same pages as the target's; None: there is no
    draft model.
    """

    def __init__(
        self,
        drafts: CacheLayout | None,
        target: CacheLayout,
        pages: PagePool,
        rules: MemoryRules,
        index: PrefixIndex,
    ) -> None:
        if drafts is not None and (drafts.page_bytes, drafts.num_pages) != (target.page_bytes, target.num_pages):
            raise InvariantError(f"a draft model has {drafts.num_pages} pages of {drafts.page_bytes} bytes of its own")
        self.pools = tuple(
            BlockPool(_behind(target, one), target.page_bytes, pages, rules.by_owner, rules.own_pages)
            for one in (() if drafts is None else drafts.groups)
        )
        self.num_dropped = 0
        """Tables that were given up for others, since the start."""
        self._num_evicted = [0] * len(self.pools)
        """Their blocks, by group."""
        self._pages = pages
        self._index = index
        self._room: Room | None = None
        self._tables: dict[SeqId, _Table] = {}
        self._quarantined: list[_Table] = []
        self._named: dict[StepId, list[_Table]] = {}

    def beside(self, room: Room) -> None:
        """What the target's groups have room for, which counts on these."""
        self._room = room

    @property
    def num_pages(self) -> int:
        """Lent to these groups now."""
        return sum([sum(pool.counts) // pool.blocks_per_page for pool in self.pools])

    @property
    def num_obtainable_pages(self) -> int:
        """Free once `give_way` has done all that it can."""
        return 0 if self._named else self.num_pages

    @property
    def sequences(self) -> Iterable[SeqId]:
        return self._tables.keys()

    def __contains__(self, seq: SeqId) -> bool:
        return seq in self._tables

    def reserve(self, seq: SeqId, num_tokens: int, num_running: int) -> tuple[BlockGrant, ...] | None:
        """Let the table hold `num_tokens` tokens in all, and leave memory for the next block of `num_running` sequences
        of the target. Returns the new entries, by group of the draft model; None: not enough, and nothing has changed.
        """
        table = self._tables.get(seq)
        have = [len(blocks) for blocks in table.blocks] if table is not None else [0] * len(self.pools)
        wanted = [max(0, pool.layout.blocks_for(num_tokens) - n) for pool, n in zip(self.pools, have, strict=True)]
        if not any(wanted) and table is not None:
            table.num_tokens = max(table.num_tokens, num_tokens)
            return ()
        pages = [
            -(-max(0, n - pool.num_free) // pool.blocks_per_page) for pool, n in zip(self.pools, wanted, strict=True)
        ]
        if not self._obtain(sum(pages), num_running):
            return None
        if table is None:
            table = self._tables[seq] = _Table(seq, [[] for _ in self.pools])
        table.num_tokens = max(table.num_tokens, num_tokens)
        grants = []
        for g, (pool, blocks, count) in enumerate(zip(self.pools, table.blocks, wanted, strict=True)):
            if count:
                # Frugal: what is free on its pages comes before fresh ones, so that no more go than were counted.
                granted = pool.grant(draft_of(seq), count, frugal=True)
                grants.append(BlockGrant(seq, GroupId(g), len(blocks), tuple(granted)))
                blocks += granted
        return tuple(grants)

    def whole(self, seq: SeqId) -> tuple[BlockGrant, ...]:
        """All entries, for an executor that does not know the sequence any more."""
        return tuple(BlockGrant(seq, GroupId(g), 0, tuple(blocks)) for g, blocks in enumerate(self._tables[seq].blocks))

    def submitted(self, step: StepId, seqs: Iterable[SeqId]) -> None:
        """A step of the draft model is in flight."""
        named = self._named[step] = [self._tables[seq] for seq in seqs]
        for table in named:
            table.steps.add(step)

    def collected(self, step: StepId) -> None:
        for table in self._named.pop(step):
            table.steps.remove(step)
            if not table.steps and table in self._quarantined:
                self._quarantined.remove(table)
                self._free(table)

    def release(self, seq: SeqId) -> None:
        """The sequence ends, waits again, or will draft no more."""
        table = self._tables.pop(seq)
        if not table.steps:
            self._free(table)
            return
        self._quarantined.append(table)
        for pool, blocks in zip(self.pools, table.blocks, strict=True):
            pool.quarantine_own(blocks)

    def give_way(self) -> bool:
        """Drop the youngest table that no step in flight names. False: there is none."""
        youngest = next((seq for seq in reversed(self._tables) if not self._tables[seq].steps), None)
        if youngest is None:
            return False
        for g, blocks in enumerate(self._tables[youngest].blocks):
            self._num_evicted[g] += len(blocks)
        self.release(youngest)
        self.num_dropped += 1
        return True

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant. Reads everything: for tests and idle times."""
        for g, pool in enumerate(self.pools):
            expected = bytearray(pool.layout.num_blocks)
            for tables, state in (
                (self._tables.values(), BlockState.PRIVATE),
                (self._quarantined, BlockState.QUARANTINED),
            ):
                for table in tables:
                    for block in table.blocks[g]:
                        if expected[block] != BlockState.FREE or pool.holder(block) != table.seq:
                            raise InvariantError(
                                f"drafts: block {block} of sequence {table.seq} is somebody else's too"
                            )
                        expected[block] = state
            pool.check(expected)
        for table in (*self._tables.values(), *self._quarantined):
            if any(step not in self._named for step in table.steps):
                raise InvariantError(f"drafts: sequence {table.seq} counts on a step that is not in flight")
        if any(not table.steps for table in self._quarantined):
            raise InvariantError("drafts: a table is in quarantine but no step in flight names it")

    def reports(self) -> tuple[GroupReport, ...]:
        """As of the target's groups; what was dropped counts as evicted."""
        tables = [*self._tables.values()]  # at once: those who look on are on another thread
        filled = sum(table.num_tokens for table in tables)
        reports = []
        for g, pool in enumerate(self.pools):
            slots = sum(len(table.blocks[g]) for table in tables) * pool.layout.tokens_per_block
            report = group_report(pool, counts_of(pool), None, max(0, slots - filled) * pool.slot_bytes)
            reports.append(replace(report, num_evicted=self._num_evicted[g]))
        return tuple(reports)

    def _obtain(self, num_pages: int, num_running: int) -> bool:
        """Let so many pages be free, if that leaves what `num_running` sequences need for their next blocks."""
        if self._room is None or num_pages > self._room.num_spare_pages(num_running):
            return False
        while self._pages.num_free < num_pages:
            if not self._index.evict():
                raise InvariantError(f"{num_pages} pages for drafts seemed obtainable, but nothing helps to evict")
        return True

    def _free(self, table: _Table) -> None:
        for pool, blocks in zip(self.pools, table.blocks, strict=True):
            pool.free_own(blocks)
            pool.disown(draft_of(table.seq))


def _behind(target: CacheLayout, drafted: GroupLayout) -> GroupLayout:
    """Among the borrowers of pages, groups of the draft model are numbered behind the target's."""
    group = drafted.group
    number = GroupId(len(target.groups) + group.id)
    return replace(drafted, group=replace(group, id=number, name=f"draft {group.name}"))
