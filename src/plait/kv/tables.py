"""Tables: what one sequence holds.

Owns the per-sequence bookkeeping as a record that `plait.kv.cache` and `plait.kv.flights` change. Knows nothing of
other sequences.
Invariant: node.length <= num_committed <= planned_end <= num_slots <= kept_slots, and the first `num_hit_blocks`
entries are those of the hit's nodes, dead ones left out.

    slots    0 ...... node.length ...... num_committed ...... planned_end ...... num_slots ....... kept_slots
             | published prefix | `tail`: ids of a   | written by     | granted, no    | granted only in groups
             | (referenced)     | block not yet full | steps in flight| step names it  | that keep everything
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import Move
from plait.kv.hit import NO_BLOCK, ImageSpan, Root
from plait.kv.images import Picture
from plait.kv.keeps import Keeps
from plait.kv.nodes import Node, Piece
from plait.kv.planned import PlannedBlock


class Writing(NamedTuple):
    """Slots [start, end) that a step in flight writes. `tokens`: the ids known for the first of them."""

    start: int
    end: int
    tokens: Sequence[int]
    snapshots: tuple[int, ...] = ()
    """Lengths behind which the step copies the states."""

    @classmethod
    def of_unknown(cls, start: int, end: int) -> Writing:
        """As nearly all are; made as `plait.core.step.Chunk.of_unknown` is."""
        return tuple.__new__(cls, (start, end, (), ()))


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `num_tokens` slots of a published block, to be copied behind the hit by the step that goes on there."""

    source: Node
    num_tokens: int
    pieces: tuple[Piece, ...] = ()
    """The source's, referenced like it."""

    def blocks(self, num_groups: int) -> tuple[BlockId, ...]:
        return tuple(self.source.block(g) for g in range(num_groups))


@dataclass(frozen=True, slots=True)
class Fork:
    """The same of a block that another sequence is filling; only committed slots. The step that copies is submitted
    before anything happens to that sequence: nothing is referenced until then. Or tokens that states have seen, where
    no group has slots to copy.
    """

    sources: tuple[BlockId, ...]
    num_tokens: int

    def blocks(self, num_groups: int) -> tuple[BlockId, ...]:
        return self.sources[:num_groups]


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Blocks for copies of the running states behind `length` tokens, until the node of that length is published."""

    length: int
    blocks: dict[int, BlockId]
    """By group."""
    is_written: bool = False
    """A step that was committed has made the copies."""


@dataclass(slots=True, eq=False)
class SeqTable:
    """The block tables of one sequence, one per group, from open to release (and on, in quarantine)."""

    seq: SeqId
    node: Node
    """The deepest index node whose prefix is the sequence's; this sequence references it and all above."""
    publishes: bool
    blocks: tuple[list[BlockId], ...]
    """Per group. `NO_BLOCK` where no row will look any more; of a state, the running one alone."""
    num_hit_blocks: int
    num_slots: int
    """Slots that every group has."""
    kept_slots: int
    """Slots that the groups which keep everything have."""
    target: int
    """Tokens that were reserved; groups that do not keep everything follow step by step."""
    num_committed: int
    planned_end: int
    num_granted: list[int]
    """Entries that `reserve` has handed out, per group; the hit's are handed out with the first."""
    num_dead: list[int]
    """Entries without a block, per group."""
    dead_end: list[int]
    """Where the dead entries end, per group."""
    behind_s: float = 0.0
    """So much longer ago than it is everything of this sequence counts as used: others' goes after it."""
    num_matched: int = 0
    """Tokens that somebody else's published prompt begins with too: there others may go on again."""
    num_prompt: int = 0
    """Tokens that were reserved at first: where they end, others may go on too."""
    left: dict[int, list[Piece]] = field(default_factory=dict)
    """By group, pieces that left the window not long ago."""
    is_new: bool = True
    """Nothing was handed out yet."""
    tail: list[int] = field(default_factory=list)
    writing: dict[StepId, Writing] = field(default_factory=dict)
    """Steps in flight with a chunk of this sequence, oldest first."""
    committed_step: int = -1
    """The newest step whose result was committed; it may still be waiting to be collected."""
    num_readers: int = 0
    """Steps in flight that name blocks of this sequence without a chunk of it."""
    lane: LaneId | None = None
    planned: PlannedBlock | None = None
    copy: Copy | Fork | None = None
    """A published source is referenced for this sequence until a step in flight does it."""
    copy_granted: bool = False
    """`reserve` has handed out the moves that the hit needs, or it needs none."""
    states: dict[int, Piece] = field(default_factory=dict)
    """The newest checkpoint on the way of this sequence, by group. Its own running state is elsewhere, so nothing but
    a copy still to be made keeps it; leaving stamps it, if it is still there.
    """
    keeps_states: bool = False
    """`states` are the hit's, referenced until a step in flight copies them."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Still to be published, ascending."""
    scratch: dict[int, dict[int, BlockId]] = field(default_factory=dict)
    """By length, and by group: copies of the states behind rows that may be rejected."""
    stale: list[tuple[int, BlockId]] = field(default_factory=list)
    """(Group, block) of running states that were replaced, which the executor still takes for them."""
    branch: int | None = None
    """Node of the prefix index behind which it says what others do not."""
    images: tuple[ImageSpan, ...] = ()
    root: Root | None = None
    missing: tuple[int, ...] = ()
    """Per group, blocks for images that were not cached when it opened."""
    pictures: dict[int, list[Picture | None]] = field(default_factory=dict)
    """By group, one for each image; None: still to be made, or consumed."""
    released_s: float | None = None

    @property
    def is_in_flight(self) -> bool:
        return bool(self.writing) or self.num_readers > 0

    def take_moves(self, token_groups: Sequence[int], state_groups: Sequence[int]) -> tuple[Move, ...]:
        """What the hit needs, once: its tail, when the block behind it is there to be copied into, and its states."""
        place, copy = self.num_hit_blocks, self.copy
        if self.copy_granted:
            return ()
        if copy is not None and any(len(self.blocks[g]) <= place for g in token_groups):
            return ()
        self.copy_granted = True
        moves = [
            Move(GroupId(g), self.states[g].block, 0, self.blocks[g][0], 0, 1) for g in state_groups if self.states
        ]
        if copy is not None:
            sources = copy.blocks(len(self.blocks))
            moves += [Move(GroupId(g), sources[g], 0, self.blocks[g][place], 0, copy.num_tokens) for g in token_groups]
        return tuple(moves)

    def dropped(self, group: int, dead: range) -> list[BlockId]:
        """Take out of the table what no row will look at any more; returns the blocks, to be freed or given back."""
        entries, blocks = self.blocks[group], []
        for entry in range(max(dead.start, self.dead_end[group]), min(dead.stop, len(entries))):
            if entries[entry] != NO_BLOCK:
                blocks.append(entries[entry])
                entries[entry] = NO_BLOCK
        self.num_dead[group] += len(blocks)
        self.dead_end[group] = max(self.dead_end[group], min(dead.stop, len(entries)))
        return blocks

    def own_states(self, group: int) -> list[BlockId]:
        """Blocks of states beside the running one."""
        kept = [one.blocks[group] for one in self.checkpoints] + [blocks[group] for blocks in self.scratch.values()]
        return kept + [block for g, block in self.stale if g == group]

    def own_blocks(self, keeps: Sequence[Keeps]) -> Iterator[tuple[int, list[BlockId]]]:
        """By group, the blocks that are no node's as far as a table knows: private ones, and those of pieces."""
        for g, (of_group, blocks) in enumerate(zip(keeps, self.blocks, strict=True)):
            if of_group.keeps_all:
                yield g, blocks[self.num_hit_blocks :]
            else:
                more = self.own_states(g) if of_group.is_state else []
                yield g, [block for block in (*blocks, *more) if block != NO_BLOCK]

    def num_held(self, group: int) -> int:
        return len(self.blocks[group]) - self.num_dead[group]

    def next_planned(self, tokens_per_block: int) -> PlannedBlock | None:
        """The first block behind `node` that the steps in flight fill, as far as their token ids are known."""
        known = list(self.tail)
        end = self.num_committed
        for step, writing in self.writing.items():
            if step <= self.committed_step:
                continue
            if writing.start != end:
                return None  # an earlier step of this sequence was cancelled: these slots will not be accepted
            known += writing.tokens
            if len(known) >= tokens_per_block:
                return PlannedBlock(self.node.id, tuple(known[:tokens_per_block]), step)
            if len(writing.tokens) < writing.end - writing.start:
                return None
            end = writing.end
        return None


def idle_bytes(tables: Collection[SeqTable], keeps_all: Sequence[bool], slot_bytes: Sequence[int]) -> list[int]:
    """Bytes of granted slots that no step so far fills, by group."""
    tables = [*tables]  # at once: those who look on are on another thread
    kept = sum(table.kept_slots - table.planned_end for table in tables)
    followed = sum(table.num_slots - table.planned_end for table in tables)
    return [(kept if whole else followed) * size for whole, size in zip(keeps_all, slot_bytes, strict=True)]
