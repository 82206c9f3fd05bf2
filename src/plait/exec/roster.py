"""Roster: who owns which row, where every sequence's blocks lie, and which steps still use them.

Owns the bookkeeping that every executor needs between plans: joins, leaves, block tables, chunks in flight. Runs
nothing, stores no token. Plans are applied in order of submission over all lanes and settled when collected.
Invariant: among the steps in flight a block has at most one writing sequence, no other sequence in flight holds it,
and nobody reads a slot that no collected step wrote, its own steps in flight apart.

A plan that breaks a rule is the scheduler's bug: `InvariantError`, after which the roster can no longer be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import (
    BlockGrant,
    Chunk,
    FromDevice,
    Join,
    Leave,
    OutputKind,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
)
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.program import GroupKind
from plait.model.visibility import CAUSAL, Visibility, window
from plait.model.visibility import chunk as own_stretch

NO_BLOCK = BlockId(-1)
"""A table entry that was never granted: it lies behind the window of a sequence that joined late."""


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


@dataclass(slots=True, eq=False)
class Seat:
    """A sequence between its join and its leave; valid until its last plan is settled. `tables[group]` only grows."""

    seq: SeqId
    row: int
    join: Join
    tables: list[list[BlockId]]
    num_slots: int | None = None
    """Where the next chunk must start; None until the first chunk of this join, which starts behind its prefix hit."""
    lane: LaneId | None = None
    """Lane of the chunks in flight; None when there are none."""
    num_in_flight: int = 0
    drafted: bool = False
    """A chunk in flight has drafts: how far it will get is not known yet."""
    samples: bool = False
    """The last chunk leaves a sampled token on the device for the next one."""
    joined: bool = True
    first_entry: list[int] = field(default_factory=list)
    """Per group: the table has no hole from this entry on."""
    dropped: list[int] = field(default_factory=list)
    """Per group: entries before this one have left the window and may belong to others."""


class Roster:
    """Applies plans' rosters, grants and chunks, and finds what contradicts them."""

    def __init__(self, max_rows: int, groups: Sequence[GroupSlots]) -> None:
        self._max_rows = max_rows
        self._groups = tuple(groups)
        self._seats: dict[SeqId, Seat] = {}
        self._rows: dict[int, SeqId] = {}
        self._left: dict[int, tuple[StepId, LaneId]] = {}
        self._in_flight: dict[StepId, tuple[tuple[Chunk, Seat], ...]] = {}
        self._writes: dict[StepId, list[tuple[GroupId, BlockId]]] = {}
        self._writers: dict[tuple[GroupId, BlockId], list[SeqId]] = {}
        self._holders: dict[tuple[GroupId, BlockId], list[Seat]] = {}
        self._written: dict[tuple[GroupId, BlockId], int] = {}

    @property
    def num_joined(self) -> int:
        return len(self._seats)

    def seat(self, seq: SeqId) -> Seat:
        if seq not in self._seats:
            raise InvariantError(f"sequence {seq} has not joined")
        return self._seats[seq]

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
        self._writes[plan.step] = []
        self._note_moves(plan)
        seats = tuple(self._start(chunk, plan) for chunk in plan.chunks)
        self._in_flight[plan.step] = tuple(zip(plan.chunks, seats, strict=True))
        self._note_writes(plan, seats)
        return seats

    def settle(self, result: StepResult) -> None:
        """The step was collected: its blocks are free for others, and its sequences go on from what was computed."""
        if result.step not in self._in_flight:
            raise InvariantError(f"step {result.step} was collected but is not in flight")
        results = {one.seq: one for one in result.seqs}
        for chunk, seat in self._in_flight.pop(result.step):
            self._settle_chunk(chunk, seat, results.get(chunk.seq))
        for key in self._writes.pop(result.step):
            writers = self._writers[key]
            writers.pop()
            if not writers:
                del self._writers[key]
        self._left = {row: left for row, left in self._left.items() if left[0] != result.step}

    def _settle_chunk(self, chunk: Chunk, seat: Seat, result: SeqResult | None) -> None:
        computed = chunk.start
        if result is not None and result.status is SeqStatus.OK:
            computed += result.num_computed
            self._mark_written(chunk.start, computed, seat)
        self._drop_behind_window(seat, computed)
        seat.num_in_flight -= 1
        if seat.num_in_flight == 0:
            seat.lane, seat.drafted, seat.num_slots = None, False, computed
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
            self._holders.setdefault((group, block), []).append(seat)

    def _start(self, chunk: Chunk, plan: StepPlan) -> Seat:
        seat = self.seat(chunk.seq)
        what = f"chunk of sequence {chunk.seq} in step {plan.step}"
        if seat.lane is not None and seat.lane != plan.lane:
            raise InvariantError(f"{what} is planned on lane {plan.lane} while in flight on lane {seat.lane}")
        if seat.drafted:
            raise InvariantError(f"{what} is planned behind drafts that are still being verified")
        if seat.num_slots is not None and chunk.start != seat.num_slots:
            raise InvariantError(
                f"{what} starts at {chunk.start}, but {seat.num_slots} tokens are computed or in flight"
            )
        if isinstance(chunk.tokens, FromDevice) and not seat.samples:
            raise InvariantError(f"{what} takes its token from the device, but nothing was sampled before it")
        self._check_tables(chunk, seat, what)
        seat.samples = any(out.kind is OutputKind.SAMPLE for out in chunk.outputs)
        seat.lane = plan.lane
        seat.num_in_flight += 1
        seat.num_slots = chunk.end
        seat.drafted = chunk.drafts is not None
        return seat

    def _check_tables(self, chunk: Chunk, seat: Seat, what: str) -> None:
        for index, group in enumerate(self._groups):
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
            written = self._written.get((index, table[entry]), 0)
            if written < needed:
                raise InvariantError(
                    f"sequence {seat.seq} joins behind {chunk.start} tokens, but block {table[entry]} of group {index} "
                    f"has {written} of {needed} slots written"
                )

    def _mark_written(self, start: int, end: int, seat: Seat) -> None:
        for index, group in enumerate(self._groups):
            if group.holds is Holds.TOKENS:
                size = group.tokens_per_block
                for entry in range(start // size, -(-end // size)):
                    self._written[GroupId(index), seat.tables[index][entry]] = min(size, end - entry * size)

    def _note_moves(self, plan: StepPlan) -> None:
        for move in plan.moves:
            holders = self._holders.get((move.group, move.dst_block))
            if not holders:
                raise InvariantError(f"step {plan.step} moves tokens into block {move.dst_block}, which nobody holds")
            source = self._written.get((move.group, move.src_block), 0)
            if source < move.src_slot + move.num_tokens:
                raise InvariantError(
                    f"step {plan.step} moves slots up to {move.src_slot + move.num_tokens} of block {move.src_block} "
                    f"of group {move.group}, of which {source} are written"
                )
            self._note_write(plan.step, move.group, move.dst_block, holders[-1])
            self._written[move.group, move.dst_block] = move.dst_slot + move.num_tokens

    def _note_writes(self, plan: StepPlan, seats: Sequence[Seat]) -> None:
        for encode in plan.encodes:
            for block in encode.blocks:
                self._note_write(plan.step, encode.group, block, self.seat(encode.seq))
        for chunk, seat in zip(plan.chunks, seats, strict=True):
            for index, group in enumerate(self._groups):
                if group.holds is Holds.ENCODED:
                    continue
                table, size = seat.tables[index], group.tokens_per_block
                if group.holds is Holds.TOKENS:
                    table = table[chunk.start // size : (chunk.end - 1) // size + 1]
                    # What a block held behind the first slot written now is lost, also if the step is cancelled.
                    for entry, block in enumerate(table):
                        kept = chunk.start % size if entry == 0 else 0
                        if self._written.get((GroupId(index), block), 0) > kept:
                            self._written[GroupId(index), block] = kept
                for block in table:
                    self._note_write(plan.step, GroupId(index), block, seat)
            for snapshot in chunk.snapshots:
                self._note_write(plan.step, snapshot.group, snapshot.block, seat)

    def _note_write(self, step: StepId, group: GroupId, block: BlockId, seat: Seat) -> None:
        key = (group, block)
        for other in self._holders.get(key, ()):
            if other is not seat and other.num_in_flight > 0:
                raise InvariantError(
                    f"step {step} writes block {block} of group {group} for sequence {seat.seq}, "
                    f"but sequence {other.seq}, in flight on lane {other.lane}, holds it"
                )
        writers = self._writers.setdefault(key, [])
        if writers and writers[-1] != seat.seq:
            raise InvariantError(
                f"step {step} writes block {block} of group {group} for sequence {seat.seq}, "
                f"but a step in flight writes it for sequence {writers[-1]}"
            )
        writers.append(seat.seq)
        self._writes[step].append(key)

    def _drop_behind_window(self, seat: Seat, computed: int) -> None:
        for index, group in enumerate(self._groups):
            if group.holds is not Holds.TOKENS:
                continue
            behind = min(group.first_visible_entry(computed), len(seat.tables[index]))
            for entry in range(seat.dropped[index], behind):
                self._release(seat, GroupId(index), seat.tables[index][entry])
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
