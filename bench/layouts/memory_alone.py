"""Memory alone: what is found again in a layout, request after request, with no model and no clock in the way.

Owns a user who asks one question after the other: looks up, computes the rest in chunks, answers, leaves.
"""

from __future__ import annotations

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import FROM_DEVICE, Chunk, StepPlan
from plait.kv.cache import KVCache, Root
from plait.kv.layouts.serving import Cutting

from .workload import Batch, Prompt

ROOT, LANE = Root("bench"), LaneId(0)


def hit_fraction(cutting: Cutting, memory_bytes: int, batch: Batch, chunk_tokens: int = 512) -> float:
    """Of all prompt tokens, those found in the cache. `SystemExit` where one request does not fit."""
    plan = cutting.plan(memory_bytes)
    kv = KVCache(plan, cutting.program.cache_groups)
    asker = _Asker(kv, chunk_tokens, keeps_tails=cutting.tails)
    found = sum(asker.ask(SeqId(number), prompt, batch.output) for number, prompt in enumerate(batch.prompts))
    return found / sum(map(len, batch.prompts))


class _Asker:
    def __init__(self, kv: KVCache, chunk_tokens: int, *, keeps_tails: bool) -> None:
        self._kv = kv
        self._chunk = chunk_tokens
        self._keeps_tails = keeps_tails
        self._now_s = 0.0
        self._step = 0

    def ask(self, seq: SeqId, prompt: Prompt, output: int) -> int:
        """Tokens of the prompt that were found."""
        kv = self._kv
        hit = kv.lookup(prompt, ROOT)
        hit = hit if self._keeps_tails else hit.without_tail()
        if kv.room_behind(hit) < len(prompt) - hit.num_tokens:
            hit = hit.without_tail()
        self._now_s += 1.0
        kv.open(seq, ROOT, hit, self._now_s)
        start = hit.num_reused
        while start < len(prompt):
            end = min(len(prompt), start + self._chunk)
            self._compute(seq, start, end, len(prompt), prompt)
            start = end
        for end in range(len(prompt) + 1, len(prompt) + output):
            self._compute(seq, end - 1, end, end, None)
        kv.release(seq, self._now_s)
        return hit.num_reused

    def _compute(self, seq: SeqId, start: int, end: int, whole: int, prompt: Prompt | None) -> None:
        """Slots [start, end) in one step; without a prompt, tokens that only the device knows."""
        kv, self._now_s = self._kv, self._now_s + 0.001
        grants = kv.reserve(seq, whole, self._now_s, up_to=kv.extent(seq, whole, end))
        if grants is None:
            raise SystemExit("one request does not fit into the memory alone")
        self._step += 1
        step = StepId(self._step)
        # The slots of a hit's tail are copied by the step, and accepted with it.
        copied = max((move.num_tokens for move in grants.moves), default=0)
        accepted = (0,) * (end - start) if prompt is None else prompt[start - copied : end]
        chunk = Chunk(seq, start, end - start, FROM_DEVICE if prompt is None else prompt[start:end])
        kv.submitted(StepPlan(step, LANE, (), grants.blocks, grants.moves, (chunk,)))
        kv.commit(step, seq, accepted, self._now_s)
        kv.collected(step)
