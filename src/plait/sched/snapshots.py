"""Snapshots: the copies of running states that a chunk is asked to make.

Owns what is known of each running prompt. Where copies are wanted the policy says (`plait.kv.checkpoints`); whether
there is memory for them the memory says.
Invariant: nothing waits for a checkpoint: without memory for one, the chunk makes none.
"""

from __future__ import annotations

from plait.core.ids import SeqId
from plait.core.request import Sequence
from plait.core.step import Snapshot
from plait.kv.cache import Hit, KVCache
from plait.kv.checkpoints import CheckpointPolicy, PromptMarks


class Snapshots:
    """Of every running sequence of a model with states. `end_tokens`: those that end a message in its chat form."""

    def __init__(self, policy: CheckpointPolicy, kv: KVCache, end_tokens: tuple[int, ...]) -> None:
        self._policy = policy
        self._kv = kv
        self._end_tokens = frozenset(end_tokens)
        self._marks: dict[SeqId, PromptMarks] = {}

    def joined(self, seq: Sequence, hit: Hit) -> None:
        """A sequence runs from now on, behind a hit."""
        prompt = seq.request.prompt
        ends = tuple(place + 1 for place, token in enumerate(prompt) if token in self._end_tokens)
        self._marks[seq.id] = PromptMarks(len(prompt), hit.num_matched, ends)

    def most_drafts(self, seq: SeqId, start: int, num_drafts: int) -> int:
        """How many drafts behind the token at `start` come before the next wanted copy: what is copied for others must
        have been accepted.
        """
        marks = self._marks.get(seq)
        if marks is None:
            return num_drafts
        end = start + 1 + num_drafts
        wanted = self._policy.lengths(marks, start, end, self._kv.checkpoint_tokens)
        return max(0, wanted[0] - start - 2) if wanted else num_drafts

    def left(self, seq: SeqId) -> None:
        self._marks.pop(seq, None)

    def of_chunk(self, seq: SeqId, start: int, end: int, now: float) -> tuple[Snapshot, ...]:
        """Copies that the chunk of tokens [start, end) makes on its way."""
        marks = self._marks.get(seq)
        if marks is None:
            return ()
        found: list[Snapshot] = []
        for length in self._policy.lengths(marks, start, end, self._kv.checkpoint_tokens):
            blocks = self._kv.checkpoint(seq, length, now)
            if blocks is None:
                break
            found += [Snapshot(length - 1 - start, group, block) for group, block in blocks]
        return tuple(found)
