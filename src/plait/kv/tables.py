"""Tables: what one sequence holds.

Owns the per-sequence bookkeeping as a record that `plait.kv.cache` and `plait.kv.flights` change. Knows nothing of
other sequences.
Invariant: node.length <= num_committed <= planned_end <= num_slots, and the first `num_hit_blocks` entries are those of
the hit's nodes.

    slots    0 ...... node.length ...... num_committed ...... planned_end ...... num_slots
             | published prefix | `tail`: ids of a   | written by     | granted, no
             | (referenced)     | block not yet full | steps in flight| step names it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import Move
from plait.kv.index import Node
from plait.kv.planned import PlannedBlock


class Writing(NamedTuple):
    """Slots [start, end) that a step in flight writes. `tokens`: the ids known for the first of them."""

    start: int
    end: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `num_tokens` slots of a published block, to be copied behind the hit by the step that goes on there."""

    source: Node
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Fork:
    """The same of a block that another sequence is filling; only committed slots. The step that copies is submitted
    before anything happens to that sequence: nothing is referenced until then.
    """

    blocks: tuple[BlockId, ...]
    num_tokens: int


@dataclass(slots=True, eq=False)
class SeqTable:
    """The block tables of one sequence, one per group, from open to release (and on, in quarantine)."""

    seq: SeqId
    node: Node
    """The deepest index node whose prefix is the sequence's; this sequence references it and all above."""
    publishes: bool
    blocks: tuple[list[BlockId], ...]
    num_hit_blocks: int
    num_slots: int
    num_committed: int
    planned_end: int
    num_granted: int = 0
    """Entries that `reserve` has handed out; the hit's are handed out with the first."""
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
    """`reserve` has handed out the moves."""
    released_s: float | None = None

    @property
    def is_in_flight(self) -> bool:
        return bool(self.writing) or self.num_readers > 0

    def take_moves(self, groups: Sequence[GroupId]) -> tuple[Move, ...]:
        """What `copy` needs, once: when the block behind the hit is there to be copied into."""
        copy, place = self.copy, self.num_hit_blocks
        if copy is None or self.copy_granted or len(self.blocks[0]) <= place:
            return ()
        self.copy_granted = True
        from_blocks = copy.source.blocks if isinstance(copy, Copy) else copy.blocks
        sources = zip(groups, from_blocks, self.blocks, strict=True)
        return tuple(Move(group, source, 0, blocks[place], 0, copy.num_tokens) for group, source, blocks in sources)

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
