"""Roster: who owns which row, where every sequence's blocks lie, and which steps still use them.

Owns the bookkeeping that every executor needs between plans: joins, leaves, block tables, chunks in flight. Runs
nothing, stores no token. Plans are applied in order of submission over all lanes and settled when collected.
Invariant: among the steps in flight a block has at most one writing sequence, no other sequence in flight holds it,
and nobody reads a slot that no collected step wrote, its own steps in flight apart.

A state has no slots: its block counts as one, so `Move(group, source, 0, destination, 0, 1)` copies it whole. Such a
move brings a checkpoint back, behind a prefix hit, a cancelled chunk or rejected drafts; the roster knows how many
tokens every state has seen and lets a chunk start behind exactly these.

A plan that breaks a rule is the scheduler's bug: `InvariantError`, after which the roster can no longer be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import (
    FROM_DEVICE,
    SAMPLES_ONE,
    BlockGrant,
    Chunk,
    Join,
    Leave,
    Move,
    OutputKind,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
    StepStatus,
)
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.program import GroupKind
from plait.model.visibility import CAUSAL, Visibility, window
from plait.model.visibility import chunk as own_stretch

NO_BLOCK = BlockId(-1)
"""A table entry that was never granted: it lies behind the window of a sequence that joined late."""


Key = tuple[GroupId, BlockId]
"""A block of the device: ids count within their group."""


class Holds(StrEnum):
    TOKENS = "tokens"
    """Entry i of a table holds slots [i * tokens_per_block, (i + 1) * tokens_per_block) of the sequence."""
    STATE = "state"
    """Every entry is a running state: each chunk reads and writes all of them."""
    ENCODED = "encoded"
    """Rows of an encoder: written by encodes, only read by chunks."""


@dataclass(frozen=True, slots=True)
class GroupSlots:
    """What the roster must know of a cache group. `visibility` says which slots are dead behind a token."""

    num_blocks: int
    holds: Holds = Holds.TOKENS
    tokens_per_block: int = 1
    visibility: Visibility = CAUSAL

    @classmethod
    def of(cls, layout: GroupLayout) -> GroupSlots:
        group, num_blocks, size = layout.group, layout.num_blocks, layout.tokens_per_block
        match group.kind:
            case GroupKind.STATE:
                return cls(num_blocks, Holds.STATE)
            case GroupKind.CROSS | GroupKind.EMBEDDING:
                return cls(num_blocks, Holds.ENCODED, size)
            case GroupKind.WINDOW:
                return cls(num_blocks, Holds.TOKENS, size, window(group.window))
            case GroupKind.CHUNKED:
                return cls(num_blocks, Holds.TOKENS, size, own_stretch(group.window))
            case GroupKind.FULL:
                return cls(num_blocks, Holds.TOKENS, size)

    def first_visible_entry(self, position: int) -> int:
        """Table entry of the oldest slot that the token at `position` sees."""
        return self.visibility.first(position) // self.tokens_per_block


def slots_of(layout: CacheLayout) -> tuple[GroupSlots, ...]:
    """What a roster must know of a loaded model's memory."""
    return tuple(GroupSlots.of(group) for group in layout.groups)


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """One block of every group, which only one sequence holds, and the slots that all of them have: [first, end)."""

    keys: tuple[Key, ...]
    starts: tuple[int, ...]
    """The slot at which each block begins."""
    first: int
    end: int


@dataclass(slots=True, eq=False)
class Seat:
    """A sequence between its join and its leave; valid until its last plan is settled. `tables[group]` only grows."""

    seq: SeqId
    row: int
    join: Join
    tables: list[list[BlockId]]
    num_slots: int | None = None
    """Where the next chunk must start, chunks in flight counted as computed; None until the first chunk of this join,
    which starts behind its prefix hit.
    """
    num_computed: int = 0
    """Where the next chunk will start if nothing in flight comes to anything: behind the last chunk that was OK."""
    lane: LaneId | None = None
    """Lane of the chunks in flight; None when there are none."""
    num_in_flight: int = 0
    drafted: bool = False
    """A chunk in flight has drafts: how far it will get is not known yet."""
    samples: bool = False
    """The last chunk leaves a sampled token on the device for the next one."""
    sampled: bool = False
    """The last chunk that was OK did. A chunk that was not leaves the device as it was."""
    broken: bool = False
    """For the executor: a chunk was cancelled or failed, and what is in flight behind it goes the same way. Settling
    the last of them mends it.
    """
    joined: bool = True
    first_entry: list[int] = field(default_factory=list)
    """Per group: the table has no hole from this entry on."""
    dropped: list[int] = field(default_factory=list)
    """Per group: entries before this one have left the window and may belong to others."""
    tail: Tail | None = None
    """The blocks that its last chunk ended in, found to be its own. A chunk that stays in them needs no other look."""


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """What a move in flight will have put into a block: for its holder to see, for others once it was collected."""

    seat: Seat
    written: int


@dataclass(frozen=True, slots=True)
class Source:
    """Slots before `end` of a block are copied by a step of `lane`, when its turn comes."""

    lane: LaneId
    end: int


class Roster:
    """Applies plans' rosters, grants and chunks, and finds what contradicts them."""

    def __init__(self, max_rows: int, groups: Sequence[GroupSlots]) -> None:
        self._max_rows = max_rows
        self._groups = tuple(groups)
        self._have_tails = all(group.holds is Holds.TOKENS for group in groups)
        self._bounded = [GroupId(place) for place, group in enumerate(groups) if group.visibility != CAUSAL]
        """Groups whose blocks leave the window."""
        self._seats: dict[SeqId, Seat] = {}
        self._rows: dict[int, SeqId] = {}
        self._left: dict[int, tuple[StepId, LaneId]] = {}
        self._in_flight: dict[StepId, tuple[tuple[Chunk, Seat], ...]] = {}
        self._writes: dict[StepId, list[Key]] = {}
        self._writers: dict[Key, list[SeqId]] = {}
        self._holders: dict[Key, list[Seat]] = {}
        self._written: dict[Key, int] = {}
        """Slots of a block that collected steps wrote, from its first; of a state, the tokens that it has seen."""
        self._moved: dict[StepId, dict[Key, Moved]] = {}
        self._sources: dict[StepId, dict[Key, Source]] = {}

    @property
    def num_joined(self) -> int:
        return len(self._seats)

    def seat(self, seq: SeqId) -> Seat:
        seat = self._seats.get(seq)
        if seat is None:
            raise InvariantError(f"sequence {seq} has not joined")
        return seat

    def apply(self, plan: StepPlan) -> tuple[Seat, ...]:
        """Take over what the plan says. Returns the seats of its chunks, in order."""
        if plan.step in self._in_flight:
            raise InvariantError(f"step {plan.step} was submitted twice")
        for change in plan.roster:
            if isinstance(change, Join):
                self._join(change, plan)
            else:
                self._leave(change, plan)
        for grant in plan.blocks:
            self._grant(grant)
        for change in plan.roster:
            if isinstance(change, Join) and change.num_imported:
                self._import(self.seat(change.seq))
        self._writes[plan.step] = []
        self._note_moves(plan)
        seats = tuple([self._start(chunk, plan) for chunk in plan.chunks])
        self._in_flight[plan.step] = tuple(zip(plan.chunks, seats, strict=True))
        self._note_writes(plan, seats)
        return seats

    def settle(self, result: StepResult) -> None:
        """The step was collected: its blocks are free for others, and its sequences go on from what was computed."""
        if result.step not in self._in_flight:
            raise InvariantError(f"step {result.step} was collected but is not in flight")
        del self._sources[result.step]
        for key, moved in self._moved.pop(result.step).items():
            if result.status is not StepStatus.FAILED:
                self._written[key] = moved.written
        results = {one.seq: one for one in result.seqs}
        for chunk, seat in self._in_flight.pop(result.step):
            self._settle_chunk(chunk, seat, results.get(chunk.seq))
        for key in self._writes.pop(result.step):
            writers = self._writers[key]
            if len(writers) > 1:
                writers.pop()
            else:
                del self._writers[key]
        if self._left:
            self._left = {row: left for row, left in self._left.items() if left[0] != result.step}

    def _settle_chunk(self, chunk: Chunk, seat: Seat, result: SeqResult | None) -> None:
        if result is not None and result.status is SeqStatus.OK:
            first, num_computed = chunk.start, result.num_computed
            if first != seat.num_computed:
                raise InvariantError(
                    f"sequence {chunk.seq} is said to be computed from {first} on, behind {seat.num_computed} "
                    "computed tokens: a chunk behind one that was cancelled or failed is cancelled too"
                )
            end = seat.num_computed = first + num_computed
            seat.sampled = _samples(chunk)
            tail = seat.tail
            if num_computed != chunk.num_tokens:
                seat.tail = None
                self._mark_written(chunk, num_computed, seat)
            elif tail is None or first < tail.first or chunk.snapshots:
                self._mark_written(chunk, num_computed, seat)
            else:
                for key, start in zip(tail.keys, tail.starts, strict=True):
                    self._written[key] = end - start
            if self._bounded:
                self._drop_behind_window(seat)
        else:
            seat.tail = None
        seat.num_in_flight -= 1
        if seat.num_in_flight == 0:
            seat.lane, seat.drafted, seat.broken = None, False, False
            seat.num_slots, seat.samples = seat.num_computed, seat.sampled
            if not seat.joined:
                self._forget(seat)

    def _join(self, join: Join, plan: StepPlan) -> None:
        seq, row = join.seq, join.row
        if seq in self._seats:
            raise InvariantError(f"sequence {seq} joined twice (again in step {plan.step})")
        if not 0 <= row < self._max_rows:
            raise InvariantError(f"sequence {seq} joins row {row}; rows go from 0 to {self._max_rows - 1}")
        if row in self._rows:
            raise InvariantError(f"row {row} joined twice: sequence {self._rows[row]} has it, {seq} wants it")
        left = self._left.get(row)
        if left is not None and left[1] != plan.lane:
            raise InvariantError(
                f"row {row} joins lane {plan.lane} before step {left[0]}, which leaves it, was collected"
            )
        count = len(self._groups)
        tables: list[list[BlockId]] = [[] for _ in range(count)]
        self._rows[row] = seq
        self._seats[seq] = Seat(seq, row, join, tables, first_entry=[0] * count, dropped=[0] * count)

    def _leave(self, leave: Leave, plan: StepPlan) -> None:
        seat = self.seat(leave.seq)
        if seat.lane is not None and seat.lane != plan.lane:
            raise InvariantError(f"sequence {seat.seq} leaves lane {plan.lane} while in flight on lane {seat.lane}")
        del self._seats[seat.seq], self._rows[seat.row]
        self._left[seat.row] = (plan.step, plan.lane)
        seat.joined = False
        if seat.num_in_flight == 0:
            self._forget(seat)

    def _grant(self, grant: BlockGrant) -> None:
        seat, group = self.seat(grant.seq), grant.group
        if not 0 <= group < len(self._groups):
            raise InvariantError(f"sequence {grant.seq} is granted blocks of group {group}, which does not exist")
        table, num_blocks = seat.tables[group], self._groups[group].num_blocks
        if grant.first < seat.dropped[group]:
            raise InvariantError(f"sequence {seat.seq} is granted entry {grant.first}, which lies behind its window")
        if grant.first > len(table):
            table.extend([NO_BLOCK] * (grant.first - len(table)))
            seat.first_entry[group] = grant.first
        elif grant.first < seat.first_entry[group] <= grant.first + len(grant.blocks):
            seat.first_entry[group] = grant.first
        for entry, block in enumerate(grant.blocks, start=grant.first):
            if not 0 <= block < num_blocks:
                raise InvariantError(f"sequence {seat.seq} is granted block {block}; group {group} has {num_blocks}")
            if entry == len(table):
                table.append(block)
            elif table[entry] == block:
                continue
            elif table[entry] != NO_BLOCK and seat.num_in_flight > 0:
                raise InvariantError(f"entry {entry} of sequence {seat.seq} changes while the sequence is in flight")
            else:
                self._release(seat, group, table[entry])
                table[entry] = block
                seat.tail = None
            holders = self._holders.setdefault((group, block), [])
            for other in holders:
                other.tail = None
            holders.append(seat)

    def _import(self, seat: Seat) -> None:
        """What came from another device is there before the step begins."""
        num_tokens = seat.join.num_imported
        for index, group in enumerate(self._groups):
            size, table = group.tokens_per_block, seat.tables[index]
            if group.holds is not Holds.TOKENS or len(table) * size < num_tokens:
                raise InvariantError(
                    f"sequence {seat.seq} joins with {num_tokens} imported tokens, for which group {index} has no room"
                )
            for entry in range(-(-num_tokens // size)):
                self._written[GroupId(index), table[entry]] = min(size, num_tokens - entry * size)

    def _start(self, chunk: Chunk, plan: StepPlan) -> Seat:
        seat = self.seat(chunk.seq)
        fault = self._start_fault(chunk, seat, plan)
        if fault is not None:
            raise InvariantError(f"chunk of sequence {chunk.seq} in step {plan.step} {fault}")
        end = chunk.start + chunk.num_tokens
        if seat.tail is None or end > seat.tail.end:
            self._check_tables(chunk, seat, f"chunk of sequence {chunk.seq} in step {plan.step}")
        if seat.num_slots is None:
            seat.num_computed = chunk.start
        seat.samples = _samples(chunk)
        seat.lane = plan.lane
        seat.num_in_flight += 1
        seat.num_slots = end
        seat.drafted = chunk.drafts is not None
        return seat

    def _start_fault(self, chunk: Chunk, seat: Seat, plan: StepPlan) -> str | None:
        if seat.lane is not None and seat.lane != plan.lane:
            return f"is planned on lane {plan.lane} while in flight on lane {seat.lane}"
        if seat.drafted:
            return "is planned behind drafts that are still being verified"
        if seat.num_slots is not None and chunk.start != seat.num_slots:
            return f"starts at {chunk.start}, but {seat.num_slots} tokens are computed or in flight"
        if chunk.tokens is FROM_DEVICE and not seat.samples:
            return "takes its token from the device, but nothing was sampled before it"
        return None

    def _check_tables(self, chunk: Chunk, seat: Seat, what: str) -> None:
        for index, group in enumerate(self._groups):
            if group.holds is Holds.STATE:
                self._check_state(chunk, seat, GroupId(index), what)
            if group.holds is not Holds.TOKENS:
                continue
            slots = len(seat.tables[index]) * group.tokens_per_block
            if slots < chunk.end:
                raise InvariantError(f"{what} ends at {chunk.end}, but its table of group {index} has {slots} slots")
            if seat.first_entry[index] > group.first_visible_entry(chunk.start):
                raise InvariantError(f"{what} sees blocks of group {index} that it was never granted")
            if seat.num_slots is None:
                self._check_prefix(chunk, seat, GroupId(index))

    def _check_prefix(self, chunk: Chunk, seat: Seat, index: GroupId) -> None:
        """A sequence that joins behind a prefix hit may only see slots that were computed and collected."""
        group, table = self._groups[index], seat.tables[index]
        for entry in range(group.first_visible_entry(chunk.start), -(-chunk.start // group.tokens_per_block)):
            needed = min(group.tokens_per_block, chunk.start - entry * group.tokens_per_block)
            written = self._written_for(seat, (index, table[entry]))
            if written < needed:
                raise InvariantError(
                    f"sequence {seat.seq} joins behind {chunk.start} tokens, but block {table[entry]} of group {index} "
                    f"has {written} of {needed} slots written"
                )

    def _check_state(self, chunk: Chunk, seat: Seat, index: GroupId, what: str) -> None:
        """A chunk goes on from a state that has seen exactly the tokens before it; behind a chunk in flight it will."""
        table = seat.tables[index]
        if not table:
            raise InvariantError(f"{what} has no state in group {index}; it was granted no block")
        if chunk.start == 0 or seat.num_in_flight > 0:
            return
        for block in table:
            seen = self._written_for(seat, (index, block))
            if seen != chunk.start:
                raise InvariantError(
                    f"{what} starts at {chunk.start}, but the state in block {block} of group {index} has seen {seen} "
                    "tokens; move a checkpoint there first"
                )

    def _written_for(self, seat: Seat, key: Key) -> int:
        """What the sequence may rely on: what collected steps wrote, and its own moves, which come first."""
        own = [moved[key].written for moved in self._moved.values() if key in moved and moved[key].seat is seat]
        return own[-1] if own else self._written.get(key, 0)

    def _mark_written(self, chunk: Chunk, num_computed: int, seat: Seat) -> None:
        end = chunk.start + num_computed
        for index, group in enumerate(self._groups):
            if group.holds is Holds.TOKENS:
                size = group.tokens_per_block
                for entry in range(chunk.start // size, -(-end // size)):
                    self._written[GroupId(index), seat.tables[index][entry]] = min(size, end - entry * size)
            elif group.holds is Holds.STATE and num_computed == chunk.num_tokens:
                # Behind rejected drafts the running state has seen too much, and stays unknown until it is moved back.
                self._written |= {(GroupId(index), block): end for block in seat.tables[index]}
        for snapshot in chunk.snapshots:
            self._written[snapshot.group, snapshot.block] = chunk.start + snapshot.offset + 1

    def _note_moves(self, plan: StepPlan) -> None:
        moved = self._moved[plan.step] = {}
        sources = self._sources[plan.step] = {}
        for move in plan.moves:
            target = (move.group, move.dst_block)
            holders = self._holders.get(target)
            if not holders:
                raise InvariantError(f"step {plan.step} moves tokens into block {move.dst_block}, which nobody holds")
            seat = holders[-1]
            holds_state = self._groups[move.group].holds is Holds.STATE
            written = self._check_state_move(move, plan, seat) if holds_state else self._check_move(move, plan)
            self._note_write(plan, target, seat, move.dst_slot)
            self._trim(target, move.dst_slot)
            moved[target] = Moved(seat, written)
            source = (move.group, move.src_block)
            end = move.src_slot + move.num_tokens
            sources[source] = Source(plan.lane, max(end, sources[source].end if source in sources else 0))

    def _check_move(self, move: Move, plan: StepPlan) -> int:
        """Returns how many slots of the destination will be written."""
        written = self._written.get((move.group, move.src_block), 0)
        if written < move.src_slot + move.num_tokens:
            raise InvariantError(
                f"step {plan.step} moves slots up to {move.src_slot + move.num_tokens} of block {move.src_block} "
                f"of group {move.group}, of which {written} are written"
            )
        return move.dst_slot + move.num_tokens

    def _check_state_move(self, move: Move, plan: StepPlan, seat: Seat) -> int:
        """Returns how many tokens the destination will have seen."""
        what = f"step {plan.step} moves state {move.src_block} of group {move.group} into block {move.dst_block}"
        if (move.src_slot, move.dst_slot, move.num_tokens) != (0, 0, 1):
            raise InvariantError(f"{what} as {move.num_tokens} slots; a state is moved whole, as slot 0 and one token")
        if seat.num_in_flight > 0:
            raise InvariantError(f"{what}, but sequence {seat.seq}, whose state it is, is in flight")
        seen = self._written.get((move.group, move.src_block), 0)
        if seen == 0:
            raise InvariantError(f"{what}, but no collected step left a state there")
        return seen

    def _note_writes(self, plan: StepPlan, seats: Sequence[Seat]) -> None:
        for encode in plan.encodes:
            for block in encode.blocks:
                self._note_write(plan, (encode.group, block), self.seat(encode.seq))
        # Copies in flight may name any block.
        may_stay = not any(self._moved.values()) and not any(self._sources.values())
        for chunk, seat in zip(plan.chunks, seats, strict=True):
            tail = seat.tail
            # Who stays in blocks of its own is their only holder, which it is as long as it is in flight: another that
            # wants to write there is found as that, so it need not be noted who writes.
            if not may_stay or tail is None or chunk.start + chunk.num_tokens > tail.end or chunk.snapshots:
                self._note_chunk(plan, chunk, seat)

    def _note_chunk(self, plan: StepPlan, chunk: Chunk, seat: Seat) -> None:
        keys: list[Key] = []
        for index, group in enumerate(self._groups):
            if group.holds is Holds.ENCODED:
                continue
            table, size = seat.tables[index], group.tokens_per_block
            if group.holds is Holds.TOKENS:
                table = table[chunk.start // size : (chunk.end - 1) // size + 1]
            for entry, block in enumerate(table):
                key = (GroupId(index), block)
                kept = chunk.start % size if entry == 0 and group.holds is Holds.TOKENS else 0
                self._note_write(plan, key, seat, kept)
                self._trim(key, kept)
            keys.append((GroupId(index), table[-1]))
        for snapshot in chunk.snapshots:
            key = (snapshot.group, snapshot.block)
            self._note_write(plan, key, seat)
            self._trim(key, 0)
        if self._have_tails:
            starts = tuple((chunk.end - 1) // group.tokens_per_block * group.tokens_per_block for group in self._groups)
            end = min(start + group.tokens_per_block for start, group in zip(starts, self._groups, strict=True))
            seat.tail = Tail(tuple(keys), starts, max(starts), end)

    def _trim(self, key: Key, kept: int) -> None:
        """What a block held behind the first slot written now is lost, cancelled or not; a state, whole."""
        if self._written.get(key, 0) > kept:
            self._written[key] = kept
        for moved in self._moved.values():
            if key in moved and moved[key].written > kept:
                moved[key] = Moved(moved[key].seat, kept)

    def _note_write(self, plan: StepPlan, key: Key, seat: Seat, first_slot: int = 0) -> None:
        group, block = key
        what = f"step {plan.step} writes block {block} of group {group} for sequence {seat.seq}"
        for other in self._holders.get(key, ()):
            if other is not seat:
                where = "at rest" if other.lane is None else f"in flight on lane {other.lane}"
                raise InvariantError(f"{what}, but sequence {other.seq}, {where}, holds it")
        for step, sources in self._sources.items():
            source = sources.get(key)
            if source is not None and source.lane != plan.lane and first_slot < source.end:
                raise InvariantError(f"{what}, but step {step}, in flight on lane {source.lane}, still copies from it")
        writers = self._writers.setdefault(key, [])
        if writers and writers[-1] != seat.seq:
            raise InvariantError(f"{what}, but a step in flight writes it for sequence {writers[-1]}")
        writers.append(seat.seq)
        self._writes[plan.step].append(key)

    def _drop_behind_window(self, seat: Seat) -> None:
        for index in self._bounded:
            group = self._groups[index]
            if group.holds is not Holds.TOKENS:
                continue
            behind = min(group.first_visible_entry(seat.num_computed), len(seat.tables[index]))
            for entry in range(seat.dropped[index], behind):
                self._release(seat, index, seat.tables[index][entry])
            seat.dropped[index] = max(seat.dropped[index], behind)

    def _forget(self, seat: Seat) -> None:
        for index, table in enumerate(seat.tables):
            for block in table[seat.dropped[index] :]:
                self._release(seat, GroupId(index), block)

    def _release(self, seat: Seat, group: GroupId, block: BlockId) -> None:
        if block == NO_BLOCK:
            return
        holders = self._holders[group, block]
        holders.remove(seat)
        if not holders:
            del self._holders[group, block]


def _samples(chunk: Chunk) -> bool:
    outputs = chunk.outputs
    if outputs is SAMPLES_ONE:
        return True
    if len(outputs) == 1:
        return outputs[0].kind is OutputKind.SAMPLE
    return any(out.kind is OutputKind.SAMPLE for out in outputs)
