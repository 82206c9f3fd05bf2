"""Open step: a plan while it is put together.

Owns the parts of one step of one lane and the tokens it may still take. Reserves nothing: grants are given to it.
Invariant: at most one chunk per sequence, and no more tokens than the budget it began with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import Sequence, Task
from plait.core.step import (
    SAMPLES_ONE,
    BlockGrant,
    Chunk,
    ChunkShape,
    Drafts,
    Encode,
    Join,
    Leave,
    Move,
    OutputKind,
    Outputs,
    RowMask,
    Snapshot,
    StepPlan,
    StepShape,
)
from plait.kv.cache import NO_GRANTS, Grants
from plait.sched.speculation import Drafted

_NO_OUTPUTS: tuple[Outputs, ...] = ()


def outputs_of(seq: Sequence, start: int, num_tokens: int) -> tuple[Outputs, ...]:
    """What the next `num_tokens` tokens of `seq` from `start` on give: the last known or unknown one samples, or is
    pooled; all are pooled where the mean of all is asked for, and those before prompt tokens score them if that is.
    """
    if seq.request.task is Task.EMBED:
        if seq.needs_every_row:
            return (Outputs(0, num_tokens, OutputKind.POOL),)
        is_last = start + num_tokens == len(seq.tokens)
        return (Outputs(num_tokens - 1, 1, OutputKind.POOL),) if is_last else _NO_OUTPUTS
    if seq.scores_prompt:
        return (*_scores(seq, start, num_tokens), *_samples(seq, start, num_tokens))
    return _samples(seq, start, num_tokens)


def _samples(seq: Sequence, start: int, num_tokens: int) -> tuple[Outputs, ...]:
    if start + num_tokens < len(seq.tokens):
        return _NO_OUTPUTS
    return SAMPLES_ONE if num_tokens == 1 else (Outputs(num_tokens - 1, 1, OutputKind.SAMPLE),)


def _scores(seq: Sequence, start: int, num_tokens: int) -> tuple[Outputs, ...]:
    """The row of a token scores the prompt token behind it."""
    prompt, top = seq.request.prompt, seq.request.sampling.prompt_logprobs
    first = max(start, seq.num_scored - 1)
    end = min(start + num_tokens, len(prompt) - 1)
    if first >= end:
        return _NO_OUTPUTS
    return (Outputs(first - start, end - first, OutputKind.LOGPROBS, prompt[first + 1 : end + 1], top or 0),)


@dataclass(slots=True)
class OpenStep:
    """`budget`: tokens that may still be added."""

    lane: LaneId
    budget: int
    chunks: dict[SeqId, Chunk] = field(default_factory=dict)
    joins: list[Join] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    encodes: list[Encode] = field(default_factory=list)
    masks: list[RowMask] = field(default_factory=list)
    num_steps: int = 1

    def add(self, seq: Sequence, num_tokens: int, grants: Grants, snapshots: tuple[Snapshot, ...] = ()) -> None:
        """The next `num_tokens` tokens of `seq`, which the budget allows."""
        start = seq.num_computed + seq.num_scheduled
        if start < len(seq.tokens):
            tokens = tuple(seq.tokens[start : start + num_tokens])
            chunk = Chunk(seq.id, start, num_tokens, tokens, None, outputs_of(seq, start, num_tokens), snapshots)
        else:
            chunk = Chunk.of_unknown(seq.id, start)
            if snapshots:
                chunk = chunk._replace(snapshots=snapshots)
        if seq.is_steered:
            self._steer(seq, chunk)
        self._put(seq, chunk, grants)

    def add_unknown(self, seq: Sequence, start: int) -> None:
        """The token at `start`, the next one of `seq`, which only the device has; nothing steers `seq`, and it has
        memory for the token.
        """
        self.chunks[seq.id] = Chunk.of_unknown(seq.id, start)
        self.budget -= 1
        seq.num_scheduled += 1

    def verify(self, seq: Sequence, drafted: Drafted, grants: Grants, snapshots: tuple[Snapshot, ...] = ()) -> None:
        """The last token of `seq`, whose text is known, and behind it drafts, which the budget allows."""
        guesses, start = drafted.tokens, seq.num_computed
        drafts = Drafts(guesses, tuple(range(-1, len(guesses) - 1)))
        outputs = (Outputs(0, len(guesses) + 1, OutputKind.SAMPLE),)
        chunk = Chunk(seq.id, start, len(guesses) + 1, (seq.tokens[start],), drafts, outputs, snapshots)
        if drafted.masks and (first := seq.next_mask()) is not None:
            self.masks += [RowMask(seq.id, row, mask) for row, mask in enumerate((first, *drafted.masks))]
        self._put(seq, chunk, grants)

    def _put(self, seq: Sequence, chunk: Chunk, grants: Grants) -> None:
        self.chunks[seq.id] = chunk
        if grants is not NO_GRANTS:
            self.grants += grants.blocks
            self.moves += grants.moves
            self.encodes += grants.encodes
        self.budget -= chunk.num_tokens
        seq.num_scheduled += chunk.num_tokens

    def _steer(self, seq: Sequence, chunk: Chunk) -> None:
        outputs = chunk.outputs
        if outputs and outputs[-1].kind is OutputKind.SAMPLE and (mask := seq.next_mask()) is not None:
            self.masks.append(RowMask(seq.id, chunk.num_tokens - 1, mask))

    def shape(self) -> StepShape:
        """Of a step of single tokens."""
        return StepShape(tuple([ChunkShape.of_one(chunk.start) for chunk in self.chunks.values()]))

    def prolong(self, num_steps: int, sequences: Iterable[Sequence], grants: Iterable[Grants]) -> None:
        """Make a step of single unknown tokens the first of a run. `grants`: those of the further steps, in order."""
        for seq in sequences:
            self.chunks[seq.id] = Chunk.of_unknown(seq.id, self.chunks[seq.id].start, num_steps)
            seq.num_scheduled += num_steps - 1
        for one in grants:
            self.grants += one.blocks
        self.num_steps = num_steps

    def plan(self, step: StepId, leaves: tuple[Leave, ...]) -> StepPlan:
        """The finished plan: whoever left before goes first, so that a row can be joined again."""
        return StepPlan(
            step=step,
            lane=self.lane,
            roster=(*leaves, *self.joins),
            blocks=tuple(self.grants),
            moves=tuple(self.moves),
            chunks=tuple(self.chunks.values()),
            encodes=tuple(self.encodes),
            sampling=tuple(self.masks),
            num_steps=self.num_steps,
        )
