"""KVCache: one memory for every kind of cache, seen from the scheduler.

Owns the order of things: what is looked up, reserved, in flight, committed, quarantined, released. The parts below it
know one thing each: `pages` (level 1), `blocks` (level 2), `index` (prefixes), `planned` (prefixes on their way). No
tensor, no clock: times are arguments.
Invariant: a block that a step in flight may read or write is neither granted nor evicted, and only collected results
are published; `check` holds after every call.

The life of a sequence:

    hit = lookup(tokens, root)                      nothing changes
    open(seq, root, hit)                            the hit's blocks are referenced and begin the table
    grants = reserve(seq, num_tokens)               private blocks behind them, and the copies that a partly matched
                                                    block needs; None: shortage, nothing changed
    imported(seq, tokens)                           instead of computing them here
    submitted(plan) -> commit(step, seq, tokens)    per step, commit only for what was computed and accepted,
                    -> collected(step)              then collected, always
    release(seq)                                    free or cached, but in quarantine until its steps are collected

This version serves models whose groups all keep keys and values of every token, with equal tokens per block; others are
refused by name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plait.core.errors import InvariantError, ModelError
from plait.core.ids import BlockId, GroupId, SeqId, StepId
from plait.core.step import BlockGrant, Move, StepPlan
from plait.kv.audit import audit
from plait.kv.blocks import BlockPool, BlockState
from plait.kv.flights import Flights
from plait.kv.hit import Hit, Root, Tail
from plait.kv.index import Node, PrefixIndex
from plait.kv.pages import PagePool
from plait.kv.planned import PlannedBlocks
from plait.kv.report import BlockCounts, CacheReport, GroupReport, IndexReport, Usage
from plait.kv.tables import Copy, Fork, SeqTable
from plait.model.cache_layout import CacheLayout
from plait.model.program import CacheGroup, GroupKind

__all__ = ["CacheReport", "Grants", "Hit", "KVCache", "Root", "Tail", "Usage"]


@dataclass(frozen=True, slots=True)
class Grants:
    """New table entries for the executor, and copies to make before they are used. Every entry is granted once."""

    blocks: tuple[BlockGrant, ...]
    moves: tuple[Move, ...]


NO_GRANTS = Grants((), ())


class KVCache:
    """See the module. `enable_prefix=False`: nothing is looked up or published."""

    def __init__(self, layout: CacheLayout, groups: Sequence[CacheGroup], enable_prefix: bool = True) -> None:
        _refuse_unsupported(layout, groups)
        self._layout = layout
        self._enable_prefix = enable_prefix
        self.tokens_per_block = layout.groups[0].tokens_per_block
        """The same in every group."""
        self._pages = PagePool(layout.num_pages)
        self._pools = tuple(BlockPool(group, layout.page_bytes, self._pages) for group in layout.groups)
        self._index = PrefixIndex(self._pools)
        self._planned = PlannedBlocks()
        self._tables: dict[SeqId, SeqTable] = {}
        self._flights = Flights(self._pools, self._index, self._tables)
        self._quarantined: dict[SeqTable, None] = {}
        """Released, but named by a step in flight."""
        self._now_s = float("-inf")
        self.capacity_tokens = self._num_tokens_within(layout.num_pages, [0] * len(self._pools))
        """Tokens of one sequence alone in empty memory."""
        self._num_duplicates = 0
        self._asked_tokens = 0
        self._hit_tokens = 0

    def lookup(self, tokens: Sequence[int], root: Root, limit: int | None = None) -> Hit:
        """The longest published prefix, at most `limit` tokens and always less than all: one token must be computed to
        go on from.

        Changes nothing and references nothing: open the hit before anything else is reserved.
        """
        cap = len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1)
        node = self._index.root(root) if self._enable_prefix else None
        if node is None or cap < 1:
            return Hit(0, tuple(() for _ in self._pools), None, None, len(tokens), None)
        size = self.tokens_per_block
        chain: list[Node] = []
        pending = None
        while node.length + size <= cap:
            key = tuple(tokens[node.length : node.length + size])
            child = node.children.get(key)
            if child is None:
                pending = self._planned.find(node.id, key)
                break
            node = child
            chain.append(node)
        rest = tuple(tokens[node.length : min(node.length + size, cap)])
        near = self._index.closest(node, rest) if rest else None
        return Hit(
            num_tokens=node.length,
            blocks=tuple(tuple(n.blocks[g] for n in chain) for g in range(len(self._pools))),
            tail=Tail(near[0].blocks, near[1], near[0].id) if near else None,
            pending=pending,
            num_asked=len(tokens),
            node=node.id if chain else None,
        )

    def beside(self, hit: Hit, source: SeqId, limit: int) -> Hit:
        """`hit` with what `source`, a sequence that begins with the same `limit` tokens, has committed of the block
        behind it, if that is more than its tail. A step that copies it must be submitted before the source changes.
        """
        table = self._tables.get(source)
        if table is None or not table.publishes or table.node.length != hit.num_tokens:
            return hit
        num_tokens = min(limit, table.num_committed) - hit.num_tokens
        if num_tokens <= hit.num_reused - hit.num_tokens:
            return hit
        place = hit.num_tokens // self.tokens_per_block
        return replace(hit, tail=Tail(tuple(blocks[place] for blocks in table.blocks), num_tokens, None, source))

    def no_hit(self) -> Hit:
        """The hit of a sequence that does not look."""
        return Hit(0, tuple(() for _ in self._pools), None, None, 0, None)

    def open(self, seq: SeqId, root: Root, hit: Hit, now_s: float, publish: bool = True) -> None:
        """Begin a table with the hit's blocks; its tail is kept until a step copies it. `publish=False`: what this
        sequence computes is never shared.
        """
        self._advance(now_s)
        if seq in self._tables:
            raise InvariantError(f"sequence {seq} is opened twice")
        node = self._index.ensure_root(root) if hit.node is None else self._index.node(hit.node)
        if node is None or node.root != root or node.length != hit.num_tokens:
            raise InvariantError(f"sequence {seq} opens a stale hit of {hit.num_tokens} tokens; look up again")
        copy = self._copy(seq, hit.tail, node) if hit.tail is not None else None
        self._index.acquire(node)
        if isinstance(copy, Copy):
            self._index.acquire(copy.source)
        self._tables[seq] = SeqTable(
            seq=seq,
            node=node,
            publishes=publish and self._enable_prefix,
            blocks=tuple(list(blocks) for blocks in hit.blocks),
            num_hit_blocks=len(hit.blocks[0]),
            num_slots=hit.num_tokens,
            num_committed=hit.num_tokens,
            planned_end=hit.num_tokens,
            copy=copy,
        )
        self._asked_tokens += hit.num_asked
        self._hit_tokens += hit.num_reused

    def reserve(self, seq: SeqId, num_tokens: int, now_s: float) -> Grants | None:
        """Let the table hold `num_tokens` tokens in all, evicting cached blocks if there is no other way.

        Returns the entries not granted before, the hit's with the first, and the copies that the step which goes on
        behind the hit has to make; None: not enough memory, and nothing has changed.
        """
        if now_s != self._now_s:
            self._advance(now_s)
        table = self._table(seq)
        if num_tokens <= table.num_slots and table.num_granted == len(table.blocks[0]):
            return NO_GRANTS
        if num_tokens > table.num_slots:
            size = self.tokens_per_block
            want = -(-num_tokens // size)
            count = want - table.num_slots // size
            if not self._make_room(count):
                return None
            frugal = sum(-(-count // pool.blocks_per_page) for pool in self._pools) > self._pages.num_free
            for pool, blocks in zip(self._pools, table.blocks, strict=True):
                blocks += pool.grant(seq, count, frugal)
            table.num_slots = want * size
        first = table.num_granted
        table.num_granted = len(table.blocks[0])
        grants = [
            BlockGrant(seq, pool.group, first, tuple(blocks[first:]))
            for pool, blocks in zip(self._pools, table.blocks, strict=True)
        ]
        return Grants(tuple(grants), table.take_moves([pool.group for pool in self._pools]))

    def imported(self, seq: SeqId, tokens: Sequence[int], now_s: float) -> None:
        """The slots of `tokens`, the first of an empty and reserved table, were filled from another device. From now on
        they are as if a step had computed them.
        """
        self._advance(now_s)
        table = self._table(seq)
        if table.num_committed or table.writing or table.copy is not None or len(tokens) > table.num_slots:
            raise InvariantError(
                f"sequence {seq} imports {len(tokens)} tokens into {table.num_slots} slots, behind "
                f"{table.num_committed} committed ones; nothing may be there before"
            )
        table.num_committed = table.planned_end = len(tokens)
        if table.publishes:
            table.tail += tokens
            self._publish(table, now_s)

    def submitted(self, plan: StepPlan) -> None:
        """A step is in flight: whatever it names stays as it is until `collected`. Raises if the plan writes what it
        must not.

        A block has at most one writing sequence, which is on one lane; published blocks are never written (H6, H7).
        """
        for table in self._flights.submit(plan).writers:
            if table.copy is not None:
                self._drop_copy(table, self._now_s)
            if table.planned is not None or table.planned_end - table.node.length >= self.tokens_per_block:
                self._plan_next(table)

    def commit(self, step: StepId, seq: SeqId, tokens: Sequence[int], now_s: float) -> None:
        """`tokens`: the ids of the slots that `step` wrote and that were accepted, in order, moved ones first.
        Publishes full blocks.

        Comes before `collected(step)`; not for cancelled or failed sequences, nor for released ones.
        """
        if now_s != self._now_s:
            self._advance(now_s)
        table = self._commit(step, seq, tokens)
        if table.publishes:
            if len(table.tail) >= self.tokens_per_block:
                self._publish(table, now_s)
            if table.planned is not None or table.planned_end - table.node.length >= self.tokens_per_block:
                self._plan_next(table)

    def commit_run(self, step: StepId, written: Mapping[SeqId, Sequence[int]], now_s: float) -> None:
        """`commit` for the sequences of a run. Blocks are published in the order in which its steps filled them, so
        that everything is as if these had been committed one by one.
        """
        self._advance(now_s)
        size = self.tokens_per_block
        full: list[tuple[int, int, SeqTable]] = []
        for number, (seq, tokens) in enumerate(written.items()):
            had = len(self._table(seq).tail)
            table = self._commit(step, seq, tokens)
            if table.publishes:
                full += [(place, number, table) for place in range(size - had, len(tokens) + 1, size)]
        for _, _, table in sorted(full, key=lambda one: one[:2]):
            self._publish_block(table, now_s)
        for seq in written:
            self._plan_next(self._table(seq))

    def _commit(self, step: StepId, seq: SeqId, tokens: Sequence[int]) -> SeqTable:
        table = self._table(seq)
        writing = table.writing.get(step)
        if writing is None:
            raise InvariantError(f"sequence {seq} commits step {step}, which is not in flight with it")
        fits = writing.start == table.num_committed and len(tokens) <= writing.end - writing.start
        if not fits or step <= table.committed_step:
            written = f"step {step}, which writes slots [{writing.start}, {writing.end})"
            raise InvariantError(
                f"sequence {seq} commits {len(tokens)} tokens of {written}, behind {table.num_committed} committed ones"
            )
        table.committed_step = step
        table.num_committed += len(tokens)
        if len(table.writing) == 1:
            table.planned_end = table.num_committed
        if table.publishes:
            table.tail += tokens
        return table

    def collected(self, step: StepId) -> None:
        """The step is over, however it ended: what only it held back is free or evictable now."""
        flight = self._flights.collect(step)
        for table in dict.fromkeys([*flight.writers, *flight.readers]) if flight.readers else flight.writers:
            # Of somebody who lives, is in the next step too and announces nothing, nothing changes.
            if table.released_s is not None or table.planned is not None or not table.writing:
                self._settle(table)
        for node in flight.sources:
            self._index.release(node, self._now_s)

    def release(self, seq: SeqId, now_s: float) -> None:
        """The sequence ends or is preempted. Its published blocks may be hit from now on, or evicted once nobody uses
        them.
        """
        self._advance(now_s)
        table = self._table(seq)
        del self._tables[seq]
        table.released_s = now_s
        self._drop_copy(table, now_s)
        if table.planned is not None:
            self._planned.drop(seq, table.planned)
            table.planned = None
        if not table.is_in_flight:
            self._drop(table, now_s)
            return
        self._quarantined[table] = None
        for pool, blocks in zip(self._pools, table.blocks, strict=True):
            pool.quarantine_own(blocks[table.num_hit_blocks :])

    def table(self, seq: SeqId, group: GroupId) -> tuple[BlockId, ...]:
        return tuple(self._table(seq).blocks[group])

    @property
    def num_quarantined(self) -> int:
        """Released sequences whose memory comes back when steps in flight are collected."""
        return len(self._quarantined)

    @property
    def is_settling(self) -> bool:
        """Whether collecting a step in flight will free or unreference something."""
        return bool(self._quarantined) or self._flights.holds_others

    def may_grow(self, hit: Hit) -> bool:
        """Whether a sequence could publish the block behind a hit: one that has published just so much."""
        return any(
            table.publishes and (table.node.id == hit.node if hit.node is not None else table.node.parent is None)
            for table in self._tables.values()
        )

    @property
    def available_tokens(self) -> int:
        """Tokens that a new sequence without a hit could reserve now, evicting all that may be evicted."""
        return self._num_tokens_within(self._num_loose_pages(), [pool.num_obtainable for pool in self._pools])

    def room_behind(self, hit: Hit) -> int:
        """Tokens that a sequence could reserve behind the full blocks of `hit` if it were opened now. The hit's own
        blocks are no room, its tail's too, though they may be evictable until then.
        """
        num_pages, have = self._pages.num_free, []
        for g, (pool, blocks) in enumerate(zip(self._pools, hit.blocks, strict=True)):
            kept = blocks if hit.tail is None else (*blocks, hit.tail.blocks[g])
            idle = [block for block in kept if pool.state(block) == BlockState.EVICTABLE]
            pages = dict.fromkeys(block // pool.blocks_per_page for block in idle)
            num_kept = sum(_is_unpinned(pool, page) for page in pages)
            num_pages += pool.num_unpinned_pages - num_kept
            have.append(pool.num_obtainable - len(idle) + num_kept * pool.blocks_per_page)
        return self._num_tokens_within(num_pages, have)

    def usage(self) -> Usage:
        counts = tuple(_counts(pool) for pool in self._pools)
        sizes = [pool.layout.block_bytes for pool in self._pools]
        used = sum((c.used + c.quarantined) * size for c, size in zip(counts, sizes, strict=True))
        evictable = sum(c.evictable * size for c, size in zip(counts, sizes, strict=True))
        total = self._layout.pool_bytes
        return Usage(total, used, evictable, total - used - evictable, self._pages.num_free, counts)

    def idle_bytes(self) -> int:
        """Bytes of granted slots that no step so far fills, those in flight included. Looks at every table."""
        slots = sum(table.num_slots - table.planned_end for table in self._tables.values())
        return slots * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Of one slot in every group."""
        return sum(pool.layout.block_bytes for pool in self._pools) // self.tokens_per_block

    def block_bytes(self, group: GroupId) -> int:
        return self._pools[group].layout.block_bytes

    def explain(self) -> CacheReport:
        usage = self.usage()
        index = IndexReport(
            is_enabled=self._enable_prefix,
            num_roots=self._index.num_roots,
            num_nodes=self._index.num_nodes,
            num_evictable=self._index.num_evictable,
            num_evictions=self._index.num_evictions,
            num_duplicates=self._num_duplicates,
            asked_tokens=self._asked_tokens,
            hit_tokens=self._hit_tokens,
        )
        return CacheReport(
            page_bytes=self._layout.page_bytes,
            num_pages=self._layout.num_pages,
            num_sequences=len(self._tables),
            num_quarantined=len(self._quarantined),
            num_steps_in_flight=len(self._flights),
            available_tokens=self.available_tokens,
            capacity_tokens=self.capacity_tokens,
            usage=usage,
            groups=tuple(_group_report(p, c) for p, c in zip(self._pools, usage.groups, strict=True)),
            index=index,
        )

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant. Reads everything: for tests and idle times."""
        flights = self._flights.by_step()
        audit(self._pages, self._pools, self._index, self._planned, self._tables, self._quarantined, flights)

    def reset_prefix_index(self) -> int:
        """Evict every cached block that nobody uses; returns how many nodes went."""
        before = self._index.num_evictions
        while self._index.evict() is not None:
            pass
        return self._index.num_evictions - before

    def _table(self, seq: SeqId) -> SeqTable:
        table = self._tables.get(seq)
        if table is None:
            raise InvariantError(f"sequence {seq} has no table; open it first")
        return table

    def _advance(self, now_s: float) -> None:
        # The eviction order rests on it: a node stamped later than its children would go before them.
        if now_s < self._now_s:
            raise InvariantError(f"time goes back from {self._now_s} s to {now_s} s")
        self._now_s = now_s

    def _copy(self, seq: SeqId, tail: Tail, behind: Node) -> Copy | Fork:
        if tail.seq is not None:
            return Fork(tail.blocks, tail.num_tokens)
        source = None if tail.node is None else self._index.node(tail.node)
        if source is None or source.parent is not behind:
            raise InvariantError(f"sequence {seq} opens a stale hit with a tail of {tail.num_tokens}; look up again")
        return Copy(source, tail.num_tokens)

    def _drop_copy(self, table: SeqTable, at_s: float) -> None:
        """The copy, if there is one, is in flight and referenced by its step, or nobody wants it any more."""
        if isinstance(table.copy, Copy):
            self._index.release(table.copy.source, at_s)
        table.copy = None

    def _settle(self, table: SeqTable) -> None:
        """One step fewer names this sequence."""
        if table.released_s is not None and not table.is_in_flight:
            del self._quarantined[table]
            self._drop(table, table.released_s)
            return
        if not table.writing:
            table.planned_end = table.num_committed
        self._plan_next(table)

    def _drop(self, table: SeqTable, at_s: float) -> None:
        for pool, blocks in zip(self._pools, table.blocks, strict=True):
            pool.free_own(blocks[table.num_hit_blocks :])
            pool.disown(table.seq)
        self._index.release(table.node, at_s)

    def _publish(self, table: SeqTable, at_s: float) -> None:
        """Turn the full blocks behind `table.node` into nodes.

        If an equal block was published meanwhile (two sequences computed it at once), the table keeps its own, which
        steps in flight may be reading; it stays private and is freed on release. The sequence references the published
        node all the same, so that what it publishes behind it cannot lose its parent.
        """
        for _ in range(len(table.tail) // self.tokens_per_block):
            self._publish_block(table, at_s)

    def _publish_block(self, table: SeqTable, at_s: float) -> None:
        size = self.tokens_per_block
        key = tuple(table.tail[:size])
        del table.tail[:size]
        node = table.node.children.get(key)
        if node is None:
            place = table.node.length // size
            node = self._index.insert(table.node, key, tuple(blocks[place] for blocks in table.blocks), at_s)
        else:
            self._index.extend(node)
            self._num_duplicates += 1
        table.node = node

    def _plan_next(self, table: SeqTable) -> None:
        """Announce the block that this sequence's steps in flight will publish next, if its tokens are known. Without
        effect, so best not called, while nothing is announced and they fill no block: most of the time.
        """
        if table.planned is not None:
            self._planned.drop(table.seq, table.planned)
            table.planned = None
        fills = table.planned_end - table.node.length >= self.tokens_per_block
        if fills and table.publishes and table.released_s is None:
            table.planned = table.next_planned(self.tokens_per_block)
            if table.planned is not None:
                self._planned.add(table.seq, table.planned)

    def _make_room(self, count: int) -> bool:
        """Evict until every group can be granted `count` blocks; False, with nothing evicted, if that cannot help."""
        if self._num_pages_for(count, [pool.num_obtainable for pool in self._pools]) > self._num_loose_pages():
            return False
        while self._num_pages_for(count, [pool.num_free for pool in self._pools]) > self._pages.num_free:
            if self._index.evict() is None:
                raise InvariantError(
                    f"{count} blocks seemed obtainable, but nothing is left to evict: {self.explain()}"
                )
        return True

    def _num_loose_pages(self) -> int:
        """Pages that are free or would be after evicting everything evictable."""
        return self._pages.num_free + sum(pool.num_unpinned_pages for pool in self._pools)

    def _num_pages_for(self, count: int, have: Sequence[int]) -> int:
        """Further pages needed so that each group has `count` blocks, of which it has `have[g]`."""
        return sum(
            -(-max(0, count - blocks) // pool.blocks_per_page) for pool, blocks in zip(self._pools, have, strict=True)
        )

    def _num_tokens_within(self, num_pages: int, have: Sequence[int]) -> int:
        """The most tokens that every group can hold with `have[g]` blocks and `num_pages` pages among them."""
        most = min(pool.layout.num_blocks for pool in self._pools)
        if len(self._pools) == 1:
            return min(most, have[0] + num_pages * self._pools[0].blocks_per_page) * self.tokens_per_block
        fitting = bisect_right(range(1, most + 1), num_pages, key=lambda count: self._num_pages_for(count, have))
        return fitting * self.tokens_per_block


def _refuse_unsupported(layout: CacheLayout, groups: Sequence[CacheGroup]) -> None:
    if tuple(groups) != tuple(one.group for one in layout.groups):
        raise InvariantError(
            f"the layout is of groups {[one.group.name for one in layout.groups]}, not {[g.name for g in groups]}"
        )
    for group in groups:
        if group.kind is not GroupKind.FULL:
            raise ModelError(
                f"cache group {group.name!r} is of kind {group.kind.value!r}, but this version holds only "
                f"{GroupKind.FULL.value!r} attention; choose a model without it"
            )
    if not groups:
        raise ModelError("the model has no cache group, so there is nothing to serve; choose a model with attention")
    sizes = [one.tokens_per_block for one in layout.groups]
    if len(set(sizes)) != 1:
        raise ModelError(
            f"cache groups with {sizes} tokens per block cannot share an index yet; give all groups the same"
        )


def _is_unpinned(pool: BlockPool, page: int) -> bool:
    """Whether evicting could empty a lent page."""
    blocks = range(page * pool.blocks_per_page, (page + 1) * pool.blocks_per_page)
    return all(pool.state(BlockId(block)) in (BlockState.FREE, BlockState.EVICTABLE) for block in blocks)


def _counts(pool: BlockPool) -> BlockCounts:
    counts = pool.counts
    return BlockCounts(
        used=counts[BlockState.PRIVATE] + counts[BlockState.SHARED],
        evictable=counts[BlockState.EVICTABLE],
        free=counts[BlockState.FREE],
        quarantined=counts[BlockState.QUARANTINED],
    )


def _group_report(pool: BlockPool, blocks: BlockCounts) -> GroupReport:
    layout = pool.layout
    held = blocks.used + blocks.evictable + blocks.free + blocks.quarantined
    return GroupReport(
        group=pool.group,
        name=layout.group.name,
        kind=layout.group.kind.value,
        num_layers=layout.group.num_layers,
        tokens_per_block=layout.tokens_per_block,
        block_bytes=layout.block_bytes,
        bytes_per_token=layout.block_bytes / layout.tokens_per_block,
        blocks_per_page=pool.blocks_per_page,
        num_pages=held // pool.blocks_per_page,
        blocks=blocks,
    )
