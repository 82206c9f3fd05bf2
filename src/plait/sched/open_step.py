"""Open step: a plan while it is put together.

Owns the parts of one step of one lane and the tokens it may still take. Reserves nothing: grants are given to it.
Invariant: at most one chunk per sequence, and no more tokens than the budget it began with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import Sequence
from plait.core.step import BlockGrant, Chunk, Join, Leave, Move, OutputKind, Outputs, StepPlan
from plait.kv.cache import Grants


@dataclass(slots=True)
class OpenStep:
    """`budget`: tokens that may still be added."""

    lane: LaneId
    budget: int
    chunks: dict[SeqId, Chunk] = field(default_factory=dict)
    joins: list[Join] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def num_next(self, seq: Sequence) -> int:
        """How many tokens of `seq` would be added now."""
        return min(seq.num_uncomputed, self.budget)

    def add(self, seq: Sequence, grants: Grants) -> None:
        """Take as many uncomputed tokens of `seq` as the budget allows; the row behind the last known token samples."""
        start, num_tokens = seq.num_computed + seq.num_scheduled, self.num_next(seq)
        outputs: tuple[Outputs, ...] = ()
        if start + num_tokens == len(seq.tokens):
            outputs = (Outputs(num_tokens - 1, 1, OutputKind.SAMPLE),)
        tokens = tuple(seq.tokens[start : start + num_tokens])
        self.chunks[seq.id] = Chunk(seq.id, start, num_tokens, tokens, outputs=outputs)
        self.grants += grants.blocks
        self.moves += grants.moves
        self.budget -= num_tokens
        seq.num_scheduled += num_tokens

    def plan(self, step: StepId, leaves: tuple[Leave, ...]) -> StepPlan:
        """The finished plan: whoever left before goes first, so that a row can be joined again."""
        return StepPlan(
            step=step,
            lane=self.lane,
            roster=(*leaves, *self.joins),
            blocks=tuple(self.grants),
            moves=tuple(self.moves),
            chunks=tuple(self.chunks.values()),
        )
