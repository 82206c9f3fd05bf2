"""Viewing: sequences as decisions see them.

Owns the translation: whose next token is due when, how long a prompt is behind what the prefix index has of it, and
which prompts would be begun together. Changes nothing.
Invariant: a sequence is seen as decoding or as a prompt, never as both.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as AnySequence
from itertools import groupby

from plait.core.ids import SeqId
from plait.core.request import Sequence
from plait.core.step import ChunkShape, StepShape
from plait.sched.lives import Lives
from plait.sched.multiplex.presets import Preset, Queue
from plait.sched.multiplex.pricing import Prices, shape_of
from plait.sched.multiplex.queueing import shortest_first
from plait.sched.multiplex.situation import NEVER, Decoding, Prompt
from plait.sched.multiplex.tracking import Speech
from plait.sched.waiting import order_key

LOOKED_AT = 64
"""Waiting sequences that a decision knows of: the more, the longer it takes."""
LEASE_S = 10.0
"""The longest that a prefix is kept for somebody who waits."""


class View:
    def __init__(self, lives: Lives, speech: Speech, prices: Prices, preset: Preset) -> None:
        self._lives = lives
        self._speech = speech
        self._prices = prices
        self._preset = preset
        self._reused: dict[SeqId, int] = {}
        """Tokens of a waiting sequence that the prefix index had when it was first looked at."""

    def forget(self, seq: SeqId) -> None:
        self._reused.pop(seq, None)

    def arrived(self, seq: Sequence, now: float) -> None:
        """It begins to wait, and what it finds in the prefix index is to stay there until its first token is due."""
        hit = self._lives.lease(seq, now, min(self._due_s(seq), now + LEASE_S))
        self._reused[seq.id] = hit.num_reused

    def decoding(self, seqs: Iterable[Sequence]) -> tuple[Decoding, ...]:
        return tuple([self._decoding(seq) for seq in seqs])

    def decoding_after(self, seqs: Iterable[Sequence], end_s: float) -> tuple[Decoding, ...]:
        """The same behind a step that says a token of each of them at `end_s`."""
        return tuple([self._decoding_after(seq, end_s) for seq in seqs])

    def prompt(self, seq: Sequence, num_reused: int | None = None) -> Prompt:
        """Of a running or waiting sequence that has tokens to compute, behind those in flight. `num_reused`: of a
        waiting one.
        """
        start = seq.num_computed + seq.num_scheduled if num_reused is None else num_reused
        return Prompt(seq.id, seq.arrival_s, start, len(seq.tokens) - start, self._due_s(seq))

    def waiting(self, units: int, start_s: float) -> tuple[Prompt, ...]:
        """Who waits, in the order in which they are to be begun, if prompts had so many units from `start_s` on."""
        seqs = self._lives.waiting.first(LOOKED_AT)
        if self._preset.queue is Queue.ARRIVAL:
            return tuple(self.waiting_prompt(seq) for seq in seqs)
        found: list[Prompt] = []
        for _, equals in groupby(seqs, key=lambda seq: order_key(seq)[:2]):
            prompts = [self.waiting_prompt(seq) for seq in equals]
            seconds = [self._prices.prompt_s(one, units) for one in prompts]
            found += shortest_first(prompts, seconds, start_s)
            start_s += sum(seconds)
        return tuple(found)

    def together(self, prompts: AnySequence[Prompt], num_begun: int, units: int, most: int) -> int:
        """How many of them are begun together. The first `num_begun` run already; one step holds `most` tokens."""
        limit = min(most, self._preset.batch_tokens)
        num_tokens = count = 0
        for prompt in prompts:
            if count and num_tokens + prompt.num_tokens > limit:
                break
            may_fill = count >= max(1, num_begun) and self._preset.fills
            if may_fill and self._prices.is_bound_by_compute(shape_of(tuple(prompts[:count])), units):
                break
            num_tokens += prompt.num_tokens
            count += 1
        return count

    def waiting_prompt(self, seq: Sequence) -> Prompt:
        """Of somebody who waits, behind what the prefix index had of it when it was first looked at."""
        reused = self._reused.get(seq.id)
        if reused is None:
            reused = self._reused[seq.id] = self._lives.lookup(seq).num_reused
        return self.prompt(seq, min(reused, len(seq.tokens) - 1))

    def _decoding(self, seq: Sequence) -> Decoding:
        said, slo = self._speech.of(seq.id), seq.request.slo
        if said is None:
            # The last token of a prompt by itself: there is no gap yet.
            return Decoding(seq.id, seq.arrival_s, seq.arrival_s, 0)
        return Decoding(seq.id, said.first_s, said.last_s, said.count, slo.itl_s, slo.tpot_s)

    def _decoding_after(self, seq: Sequence, end_s: float) -> Decoding:
        said, slo = self._speech.of(seq.id), seq.request.slo
        if seq.num_computed + seq.num_scheduled < len(seq.tokens):
            # The last token of a prompt by itself is known, and nothing is said before it.
            return self._decoding(seq)
        if said is None:
            return Decoding(seq.id, end_s, end_s, 0, slo.itl_s, slo.tpot_s)
        return Decoding(seq.id, said.first_s, end_s, said.count + 1, slo.itl_s, slo.tpot_s)

    def _due_s(self, seq: Sequence) -> float:
        said, slo = self._speech.of(seq.id), seq.request.slo
        if said is not None:
            gaps = [gap for gap in (slo.itl_s, slo.tpot_s) if gap is not None]
            return said.last_s + min(gaps, default=NEVER)
        target = slo.first_token_s(seq.num_prompt)
        if target is not None:
            return seq.arrival_s + target
        return NEVER if seq.request.deadline_s is None else seq.request.deadline_s


def decode_shape(seqs: Iterable[Sequence]) -> StepShape:
    """Of a step that brings each of them a token."""
    return StepShape(tuple([ChunkShape.of_one(len(seq.tokens) - 1) for seq in seqs]))
