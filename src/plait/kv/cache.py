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

Groups that do not keep everything (`plait.kv.keeps`) give up in `commit` what no row will look at any more, and are
granted no further ahead than `reserve` is told (`up_to`). All groups of tokens have equally many tokens per block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, SeqId, StepId
from plait.core.step import BlockGrant, Encode, StepPlan
from plait.kv.audit import audit
from plait.kv.blocks import BlockPool
from plait.kv.checkpoints import CheckpointRoom
from plait.kv.drafts import DraftTables
from plait.kv.flights import Flights
from plait.kv.grants import NO_GRANTS, Grants
from plait.kv.hit import NO_BLOCK, Hit, ImageSpan, Root, Tail
from plait.kv.images import Images
from plait.kv.index import PrefixIndex
from plait.kv.keeps import Keeps, KeepsRows, keeps_of, long_dead, refuse_unsupported, windows_of
from plait.kv.leases import Leases
from plait.kv.looking import Looking
from plait.kv.nodes import Node, Piece
from plait.kv.outliving import keep, outlive
from plait.kv.owners import checkpoints_of, tail_of
from plait.kv.pages import PagePool
from plait.kv.planned import PlannedBlocks
from plait.kv.promises import Promises
from plait.kv.publishing import Publishing
from plait.kv.report import CacheReport, HitTotals, Usage, group_report, index_report, usage_of
from plait.kv.room import Room
from plait.kv.rules import ALL_RULES, MemoryRules
from plait.kv.scratch import Scratch
from plait.kv.sights import Sights
from plait.kv.tables import Checkpoint, Copy, Fork, SeqTable, idle_bytes
from plait.model.cache_layout import CacheLayout
from plait.model.program import CacheGroup

__all__ = ["NO_GRANTS", "CacheReport", "Grants", "Hit", "KVCache", "Root", "Tail", "Usage"]

STATE_TOKENS = 32
"""Tokens of a node of the prefix index where no group has blocks of tokens."""


class KVCache:
    """See the module. `enable_prefix=False`: nothing is looked up or published. `keeps`: rules for groups whose kind
    says too little, by group. `node_tokens`: between checkpoints at least, where no group has blocks of tokens.
    `checkpoint_fraction`: part of the memory for checkpoints of states. `rules`: habits that may be switched off.
    `drafts`: the groups of a draft model, on the same pages.
    """

    def __init__(
        self,
        layout: CacheLayout,
        groups: Sequence[CacheGroup],
        enable_prefix: bool = True,
        keeps: Mapping[GroupId, Keeps] | None = None,
        node_tokens: int = STATE_TOKENS,
        checkpoint_fraction: float = 1.0,
        rules: MemoryRules = ALL_RULES,
        drafts: CacheLayout | None = None,
    ) -> None:
        refuse_unsupported(layout, groups)
        self._layout, self._rules, self._enable_prefix = layout, rules, enable_prefix
        self.tokens_per_block = max(one.tokens_per_block for one in layout.groups) or node_tokens
        """The same in every group of tokens."""
        self._keeps = tuple((keeps or {}).get(one.group.id) or keeps_of(one) for one in layout.groups)
        self._pages = PagePool(layout.num_pages, layout.own_pages)
        self._pools = tuple(
            BlockPool(g, layout.page_bytes, self._pages, rules.by_owner, rules.own_pages) for g in layout.groups
        )
        self.slot_bytes = [
            0 if isinstance(keeps, KeepsRows) else pool.slot_bytes
            for keeps, pool in zip(self._keeps, self._pools, strict=True)
        ]
        self._images = Images(self._pools, self._keeps, self.tokens_per_block)
        is_shared = self._pages.is_shared
        self._index = PrefixIndex(self._pools, self._keeps, self._images, rules, is_shared, layout.pool_bytes)
        self.drafts = DraftTables(drafts, layout, self._pages, rules, self._index)
        self._room = Room(self._pages, self._pools, self._keeps, self.tokens_per_block, self.drafts)
        self._of_tokens = [g for g, one in enumerate(self._keeps) if not one.is_state and g not in self._images.groups]
        self._windows = windows_of(self._keeps)
        self._states = [g for g, one in enumerate(self._keeps) if one.is_state]
        self._parts = sorted(self._windows + self._states)
        self.keeps_all, self.has_states = not self._parts, bool(self._states)
        self.checkpoint_tokens = self.tokens_per_block if self._of_tokens else 1
        """A checkpoint behind a multiple of so many can be taken up whatever is published behind it."""
        self.has_images = bool(self._images.groups)
        self._checkpoints = CheckpointRoom(layout, self._pools, self._states, self._index, checkpoint_fraction)
        self._publishing = Publishing(self._pools, self._index, self._keeps, self.tokens_per_block)
        self._planned = PlannedBlocks()
        self._looking = Looking(self._index, self._planned, self._keeps, self.tokens_per_block, rules.tails)
        self.leases = Leases(self._index, self._looking.pieces_of, layout.pool_bytes)
        self._tables: dict[SeqId, SeqTable] = {}
        self._flights = Flights(self._pools, self._index, self._tables, self.tokens_per_block)
        self._quarantined: dict[SeqTable, None] = {}
        """Released, but named by a step in flight."""
        self._now_s = float("-inf")
        self.capacity_tokens = self._room.num_tokens_empty()
        """Tokens of one sequence alone in empty memory."""
        self._sights = Sights(self._images, self._pools)
        self._promises = Promises(self._room, self._keeps, self._tables, self.tokens_per_block, self._index.keep_less)
        self.scratch = Scratch(self._pools, self._states, self._tables, self._room, self._promises, self._make_room)
        self._totals = HitTotals(len(self._pools))

    def lookup(self, tokens: Sequence[int], root: Root, limit: int | None = None) -> Hit:
        """The longest published prefix, at most `limit` tokens and always less than all: one token must be computed to
        go on from.

        Changes nothing and references nothing: open the hit before anything else is reserved.
        """
        if not self._enable_prefix:
            return replace(self.no_hit(), num_asked=len(tokens))
        return self._looking.lookup(tokens, root, len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1))

    def beside(self, hit: Hit, source: SeqId, limit: int) -> Hit:
        """`hit` with what `source`, a sequence that begins with the same `limit` tokens, has committed of the block
        behind it, if that is more than its tail. A step that copies it must be submitted before the source changes.
        """
        table = self._tables.get(source)
        can_copy = self._rules.tails and not self._states and not self._images.groups
        if table is None or not table.publishes or table.node.length != hit.num_tokens or not can_copy:
            return hit
        num_tokens = min(limit, table.num_committed) - hit.num_tokens
        if num_tokens <= hit.num_reused - hit.num_tokens:
            return hit
        place = hit.num_tokens // self.tokens_per_block
        tail = Tail(tuple(blocks[place] for blocks in table.blocks), num_tokens, None, source)
        return replace(hit, tail=tail, shorter=hit.without_tail())

    def no_hit(self) -> Hit:
        return self._looking.no_hit()

    def with_images(self, hit: Hit, root: Root, images: Sequence[ImageSpan]) -> Hit:
        """`hit` with the cached rows of a prompt's images, found by content; the others will be encoded."""
        return self._sights.with_images(hit, root, images)

    def can_hold(self, num_tokens: int, images: Sequence[ImageSpan]) -> bool:
        """Whether empty memory has room for a sequence alone, with its images."""
        return self._room.holds(num_tokens, self._sights.blocks_for(images))

    def open(self, seq: SeqId, root: Root, hit: Hit, now_s: float, publish: bool = True, behind_s: float = 0.0) -> None:
        """Begin a table with the hit's blocks; its tail is kept until a step copies it. `publish=False`: what this
        sequence computes is never shared. `behind_s`: it counts as so long ago, so that others' prefixes go later.
        """
        self._advance(now_s)
        if seq in self._tables:
            raise InvariantError(f"sequence {seq} is opened twice")
        node = self._index.ensure_root(root) if hit.node is None else self._index.node(hit.node)
        pieces = None if node is None or node.root != root else self._looking.pieces_of(hit, node)
        if node is None or node.length != hit.num_tokens or pieces is None:
            raise InvariantError(f"sequence {seq} opens a stale hit of {hit.num_tokens} tokens; look up again")
        copy = self._copy(seq, hit.tail, node) if hit.tail is not None else None
        self._index.acquire(node)
        if hit.branch is not None and publish:
            self._index.hit(hit.branch)
        if isinstance(copy, Copy):
            self._index.acquire(copy.source)
            pieces = [*pieces, *copy.pieces]
        for piece in pieces:
            self._index.take(piece)
            piece.was_hit = True
        states = {piece.group: piece for piece in pieces if piece.group in self._states}
        self._tables[seq] = SeqTable(
            seq=seq,
            node=node,
            publishes=publish and self._enable_prefix,
            blocks=tuple([*blocks] if g in self._of_tokens else [] for g, blocks in enumerate(hit.blocks)),
            num_hit_blocks=hit.num_tokens // self.tokens_per_block,
            num_slots=hit.num_tokens,
            kept_slots=hit.num_tokens,
            target=hit.num_tokens,
            num_committed=hit.num_tokens,
            planned_end=hit.num_tokens,
            num_granted=[0] * len(self._pools),
            num_dead=[blocks.count(NO_BLOCK) if self._parts else 0 for blocks in hit.blocks],
            dead_end=[keeps.dead(hit.num_tokens).stop if self._parts else 0 for keeps in self._keeps],
            behind_s=behind_s,
            num_matched=hit.num_matched,
            copy=copy,
            copy_granted=copy is None and not states,
            states=states,
            keeps_states=bool(states),
            branch=hit.branch if publish and self._windows else None,
        )
        self._sights.open(self._tables[seq], root, hit)
        self._totals.add(hit)

    def reserve(self, seq: SeqId, num_tokens: int, now_s: float, up_to: int | None = None) -> Grants | None:
        """Let the table hold `num_tokens` tokens in all, evicting cached blocks if there is no other way. `up_to`: how
        far groups that do not keep everything follow for now; default: all the way.

        Returns the entries not granted before, the hit's with the first, and the copies that the step which goes on
        behind the hit has to make; None: not enough memory, and nothing has changed.
        """
        if now_s != self._now_s:
            self._advance(now_s)
        table = self._table(seq)
        reach = num_tokens if up_to is None or not self._windows else min(up_to, num_tokens)
        if num_tokens <= table.kept_slots and reach <= table.num_slots and not (table.is_new or table.stale):
            return NO_GRANTS
        wanted = self._promises.wanted(table, num_tokens, reach)
        encodes: tuple[Encode, ...] = ()
        is_seeing = bool(table.images) and table.is_new
        if any(wanted) or is_seeing:
            demand = [a + b for a, b in zip(wanted, table.missing, strict=True)] if is_seeing else wanted
            if not self._make_room(demand):
                return None
            frugal = self._room.is_frugal(self._sights.in_own_pages(table, demand) if is_seeing else demand)
            for pool, blocks, count in zip(self._pools, table.blocks, wanted, strict=True):
                if count:
                    blocks += pool.grant(tail_of(seq), count, frugal)
            if is_seeing:
                encodes = self._sights.make(table, now_s, frugal)
        size = self.tokens_per_block
        table.kept_slots = max(table.kept_slots, -(-num_tokens // size) * size)
        table.num_slots = max(table.num_slots, -(-reach // size) * size)
        table.target = max(table.target, num_tokens)
        table.num_prompt = num_tokens if table.is_new else table.num_prompt
        table.is_new = False
        return Grants(tuple(self._new_grants(table)), table.take_moves(self._of_tokens, self._states), encodes)

    def _new_grants(self, table: SeqTable) -> Iterator[BlockGrant]:
        for g, (pool, blocks) in enumerate(zip(self._pools, table.blocks, strict=True)):
            first = table.num_granted[g]
            table.num_granted[g] = len(blocks)
            if pool.layout.tokens_per_block and not self._keeps[g].keeps_all:
                # What is dead already was never the executor's, and the roster takes a run without holes alone.
                first = max(first, table.dead_end[g])
            if first < len(blocks) or self.keeps_all:
                yield BlockGrant(table.seq, pool.group, first, tuple(blocks[first:]))

    def extent(self, seq: SeqId, num_tokens: int, end: int) -> int:
        """How far, up to slot `end`, groups that do not keep everything can follow now, if the table is to hold
        `num_tokens` tokens in all; never less than they do already. What others were promised for their prompts is left
        to them; what trunks keep is given up if a prompt could not go on at all.
        """
        return self._promises.extent(self._table(seq), num_tokens, end) if self._windows else end

    def fits(self, hit: Hit, num_tokens: int, num_growing: int) -> bool:
        """Whether a sequence of `num_tokens` that opens `hit` has room now, beside a block more in every group of
        tokens for so many others, and beside what others were promised for their prompts.
        """
        return self._promises.fits(hit, num_tokens, num_growing)

    def checkpoint(self, seq: SeqId, length: int, now_s: float) -> tuple[tuple[GroupId, BlockId], ...] | None:
        """Blocks for copies of a sequence's states behind `length` tokens; the chunk that computes the last of these
        tokens makes them (`Chunk.snapshots`). They are published with it. None: there is no memory for them that nobody
        was promised, or nothing to be published.
        """
        self._advance(now_s)
        table = self._table(seq)
        after = table.checkpoints[-1].length if table.checkpoints else table.planned_end
        if length <= after:
            raise InvariantError(f"sequence {seq} asks for a checkpoint behind {length} tokens, not behind {after}")
        demand = [int(keeps.is_state) for keeps in self._keeps]
        if not self._states or not table.publishes:
            return None
        beside = [count + more for count, more in zip(demand, self._promises.made(), strict=True)]
        if not self._room.is_obtainable(beside) or not self._checkpoints.make_room(self._tables.values()):
            return None
        self._make_room(demand)
        frugal = self._room.is_frugal(demand)
        blocks = {g: self._pools[g].grant(checkpoints_of(seq), 1, frugal)[0] for g in self._states}
        table.checkpoints.append(Checkpoint(length, blocks))
        return tuple((GroupId(g), block) for g, block in blocks.items())

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
            self._publishing.publish(table, now_s)
        self._drop_dead(table, now_s)

    def submitted(self, plan: StepPlan) -> None:
        """A step is in flight: whatever it names stays as it is until `collected`. Raises if the plan writes what it
        must not.

        A block has at most one writing sequence, which is on one lane; published blocks are never written (H6, H7).
        """
        size = self.tokens_per_block
        for table in self._flights.submit(plan).writers:
            if table.copy is not None:
                self._drop_copy(table, self._now_s)
            if table.keeps_states:
                self._give_states(table, self._now_s)
            if table.stale:
                self.scratch.told(table)
            if table.publishes and (table.planned is not None or table.planned_end - table.node.length >= size):
                self._plan_next(table)

    def commit(self, step: StepId, seq: SeqId, tokens: Sequence[int], now_s: float) -> None:
        """`tokens`: the ids of the slots that `step` wrote and that were accepted, in order, moved ones first.
        Publishes full blocks.

        Comes before `collected(step)`; not for cancelled or failed sequences, nor for released ones.
        """
        if now_s != self._now_s:
            self._advance(now_s)
        table = self._flights.commit(step, seq, tokens)
        if table.publishes:
            if len(table.tail) >= self.tokens_per_block:
                self._publishing.publish(table, now_s)
            if table.checkpoints:
                self._publishing.publish_inner(table, now_s)
            if table.planned is not None or table.planned_end - table.node.length >= self.tokens_per_block:
                self._plan_next(table)
        if self._windows:
            self._drop_dead(table, now_s)
        if table.pictures:
            self._sights.committed(table, now_s)

    def commit_run(self, step: StepId, written: Mapping[SeqId, Sequence[int]], now_s: float) -> None:
        """`commit` for the sequences of a run. Blocks are published in the order in which its steps filled them, so
        that everything is as if these had been committed one by one.
        """
        self._advance(now_s)
        size = self.tokens_per_block
        full: list[tuple[int, int, SeqTable]] = []
        for number, (seq, tokens) in enumerate(written.items()):
            had = len(self._table(seq).tail)
            table = self._flights.commit(step, seq, tokens)
            if table.publishes:
                full += [(place, number, table) for place in range(size - had, len(tokens) + 1, size)]
        for _, _, table in sorted(full, key=lambda one: one[:2]):
            self._publishing.publish_block(table, now_s)
        for seq in written:
            self._publishing.publish_inner(self._table(seq), now_s)
            self._plan_next(self._table(seq))
            self._drop_dead(self._table(seq), now_s)
            self._sights.committed(self._table(seq), now_s)

    def collected(self, step: StepId) -> None:
        """The step is over, however it ended: what only it held back is free or evictable now."""
        flight = self._flights.collect(step)
        for table in dict.fromkeys([*flight.writers, *flight.readers]) if flight.readers else flight.writers:
            # Of somebody who lives, is in the next step too and announces nothing, nothing changes.
            if table.released_s is not None or table.planned is not None or not table.writing:
                self._settle(table)
        for piece in flight.pieces:
            self._index.give(piece, self._now_s)
        for node in flight.sources:
            self._index.release(node, self._now_s)

    def release(self, seq: SeqId, now_s: float) -> None:
        """The sequence ends or is preempted. Its published blocks may be hit from now on, or evicted once nobody uses
        them.
        """
        self._advance(now_s)
        table = self._table(seq)
        del self._tables[seq]
        if len(self._tables) <= 1:
            self._index.keep_nothing()
        table.released_s = now_s - table.behind_s
        self._drop_copy(table, now_s)
        if table.publishes and self._windows:
            dead = long_dead(self._keeps, self._windows, table.node.length)
            self._index.keep_young(table.node, dead, now_s)
        if table.branch is not None:
            self._index.branched(table.branch, self._windows, now_s)
        for g, piece in table.states.items():
            if self._index.piece(g, piece.block) is piece:
                self._index.stamp(piece, now_s)
        if table.planned is not None:
            self._planned.drop(seq, table.planned)
            table.planned = None
        if not table.is_in_flight:
            self._drop(table, table.released_s)
            return
        self._quarantined[table] = None
        for g, blocks in table.own_blocks(self._keeps):
            self._pools[g].quarantine_own(blocks)

    def num_slots(self, seq: SeqId) -> int:
        """Tokens up to which `reserve` and `extent` have nothing to do. It never decreases until `release`."""
        table = self._table(seq)
        return min(table.num_slots, table.kept_slots)

    def table(self, seq: SeqId, group: GroupId) -> tuple[BlockId, ...]:
        return tuple(self._table(seq).blocks[group])

    @property
    def num_quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def is_settling(self) -> bool:
        """Whether collecting a step will free or unreference something."""
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
        return self._room.num_tokens()

    def room_behind(self, hit: Hit) -> int:
        """Tokens that a sequence could reserve behind the full blocks of `hit` if it were opened now. The blocks of hit
        and tail are no room.
        """
        return self._room.num_tokens_behind(hit)

    def usage(self) -> Usage:
        return usage_of(self._pools, self.drafts.pools, self._layout.pool_bytes, self._pages.num_free)

    def idle_bytes(self) -> list[int]:
        """By group, bytes of granted slots that no step so far fills, those in flight included."""
        return idle_bytes(self._tables.values(), [one.keeps_all for one in self._keeps], self.slot_bytes)

    def explain(self) -> CacheReport:
        usage, idle, totals = self.usage(), self.idle_bytes(), self._totals
        groups = [group_report(pool, usage.groups[g], totals, idle[g]) for g, pool in enumerate(self._pools)]
        return CacheReport(
            page_bytes=self._layout.page_bytes,
            num_pages=self._layout.num_pages,
            num_sequences=len(self._tables),
            num_quarantined=len(self._quarantined),
            num_steps_in_flight=len(self._flights),
            available_tokens=self.available_tokens,
            capacity_tokens=self.capacity_tokens,
            usage=usage,
            groups=(*groups, *self.drafts.reports()),
            index=index_report(self._index, self._totals, self._publishing.num_duplicates, self._enable_prefix),
        )

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant. Reads everything: for tests and idle times."""
        parts = (self._pages, self._pools, self._index, self._planned, self._images, self._tables, self._quarantined)
        audit(*parts, self._flights.by_step(), self._keeps, self.tokens_per_block)
        self.leases.check()
        self.drafts.check()

    def reset_prefix_index(self) -> int:
        """Evict every cached block that nobody uses; returns how many nodes, pieces and images went."""
        before = self._index.num_evictions + self._images.num_evictions
        while self._index.evict():
            pass
        return self._index.num_evictions + self._images.num_evictions - before

    def _table(self, seq: SeqId) -> SeqTable:
        table = self._tables.get(seq)
        if table is None:
            raise InvariantError(f"sequence {seq} has no table; open it first")
        return table

    def _advance(self, now_s: float) -> None:
        # A node stamped later than its children would go before them.
        if now_s < self._now_s:
            raise InvariantError(f"time goes back from {self._now_s} s to {now_s} s")
        self._now_s = now_s
        self.leases.expire(now_s)

    def _copy(self, seq: SeqId, tail: Tail, behind: Node) -> Copy | Fork:
        if tail.seq is not None or not self._of_tokens:
            return Fork(tail.blocks, tail.num_tokens)
        source = None if tail.node is None else self._index.node(tail.node)
        if source is None or source.parent is not behind or not self._looking.can_copy(source, tail):
            raise InvariantError(f"sequence {seq} opens a stale hit with a tail of {tail.num_tokens}; look up again")
        return Copy(source, tail.num_tokens, tuple(source.pieces[g] for g in self._windows))

    def _drop_copy(self, table: SeqTable, at_s: float) -> None:
        """The copy, if there is one, is in flight and referenced by its step, or nobody wants it any more."""
        if isinstance(table.copy, Copy):
            for piece in table.copy.pieces:
                self._index.give(piece, at_s)
            self._index.release(table.copy.source, at_s)
        table.copy = None

    def _give_states(self, table: SeqTable, at_s: float) -> None:
        """The step that copies the hit's states is in flight and references them, or nobody wants them any more."""
        table.keeps_states = False
        for piece in table.states.values():
            self._index.give(piece, at_s)

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
        for g, blocks in table.own_blocks(self._keeps):
            self._let_go(g, blocks, at_s)
            self._pools[g].disown(tail_of(table.seq))
        for g in self._states:
            self._pools[g].disown(checkpoints_of(table.seq))
        if table.keeps_states:
            self._give_states(table, at_s)
        self._sights.left(table, at_s)
        self._index.leave(table.node, at_s)

    def _let_go(self, group: int, blocks: Sequence[BlockId], at_s: float) -> list[Piece]:
        """A table does not need them any more: private ones hold nothing, pieces have one user less."""
        self._pools[group].free_own(blocks)
        found = (self._index.piece(group, block) for block in blocks if group in self._parts)
        pieces = [piece for piece in found if piece is not None]
        for piece in pieces:
            self._index.give(piece, at_s)
        return pieces

    def _drop_dead(self, table: SeqTable, at_s: float) -> None:
        """Behind what is accepted now, some rows of the past are looked at by nobody any more (H3)."""
        if table.num_readers:
            return  # a step in flight names this table beside its own
        for g in self._windows:
            dead = self._keeps[g].dead(table.num_committed)
            if dead.stop > table.dead_end[g]:
                pieces = self._let_go(g, table.dropped(g, dead), at_s)
                if pieces and self._rules.balanced:
                    if len(self._tables) > 1:
                        keep(self._index, self._keeps[g], table, pieces)
                    outlive(self._index, self._keeps[g], table, g, pieces, self._rules.kept_behind, at_s)

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

    def _make_room(self, demand: Sequence[int]) -> bool:
        """Evict until every group can be granted its part; False, with nothing evicted, if that cannot help."""
        if self._room.is_free(demand):
            return True
        if not self._room.is_obtainable(demand):
            return False
        while short := self._room.short_of(demand):
            if not self._index.evict(short) and not self.drafts.give_way():
                raise InvariantError(f"{demand} blocks seemed obtainable, but nothing helps to evict: {self.explain()}")
        return True
