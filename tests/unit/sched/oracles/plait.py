"""Plait's own policy, from its description (docs/concepts/scheduling.md): every candidate is looked at, none is left
out because another must be better.

Of all forms and shares that end before the earliest next-token deadline at worst: most prompt tokens a second; what
there is stays unless something is better by more than a twentieth; if there is none, decode alone if that is in time,
else the split whose worse side is least late.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.unit.sched.oracles.bullet import Bullet
from tests.unit.sched.oracles.fused import fine

from plait.core.step import ChunkShape, StepShape
from plait.cost.model import CostModel
from plait.sched.multiplex.situation import Decoding, Situation

BAND = 0.05
MOST_GAP = 4.0
Candidate = tuple[float, str, int, int]
"""Prompt tokens a second, form, units of decode, prompt tokens of a fused step."""


class Plait:
    def __init__(self, cost: CostModel, units: int, spans: int, shares: tuple[int, ...], size: int) -> None:
        self.cost, self.N, self.spans, self.shares, self.size = cost, units, spans, shares, size

    def decide(self, s: Situation) -> tuple[str, int, int]:
        """(form, units of decode, chunk)."""
        if s.prefill is None:
            return "decode", self.N, 0
        if not s.decoding:
            return "prefill", 0, 0
        if s.is_stepping and not s.is_prefilling and s.form != "lanes":
            return "decode", self.N, 0
        found = list(self.candidates(s))
        if not found:
            return self.least_harm(s)
        best = max(found, key=lambda one: one[0])
        for rate, form, units, chunk in found:
            turns = form in ("prefill", "decode") and s.form in ("prefill", "decode")
            if (turns or (form, units) == (s.form, s.units)) and rate >= (1 - BAND) * best[0]:
                return form, units, chunk
        return best[1:]

    def due(self, one: Decoding) -> float:
        hard = math.inf if one.itl_s is None else one.last_s + one.itl_s
        if one.tpot_s is None:
            return hard
        return min(hard, one.first_s + (one.num_said + 1) * one.tpot_s, one.last_s + MOST_GAP * one.tpot_s)

    def candidates(self, s: Situation) -> Iterator[Candidate]:
        assert s.prefill is not None
        due = min(map(self.due, s.decoding))
        tokens = s.prefill.shape.num_tokens
        if not (s.is_stepping or s.is_prefilling or s.prefill.left < 1.0):
            yield from self.fused(s, due)
        for c in self.shares:
            end = s.now_s + s.decode_left * self.cost.price(s.decode, c, (s.prefill.shape,)).worst_s
            if end > due:
                continue
            joined = min((one.last_s + one.itl_s for one in s.joining if one.itl_s is not None), default=math.inf)
            if s.joining and end + self.cost.price(s.merged, c, (s.prefill.shape,)).worst_s > joined:
                continue
            yield tokens / self.cost.price(s.prefill.shape, self.N - c, (s.decode,)).expected_s, "lanes", c, 0
        if not s.is_stepping:
            step, whole = self.cost.price(s.decode, self.N), self.cost.price(s.prefill.shape, self.N).expected_s
            prompts = max(0.0, due - max(one.last_s for one in s.decoding) - step.worst_s)
            rate = prompts / (prompts + step.expected_s) * tokens / whole
            if due - s.now_s - step.worst_s >= whole / self.spans:
                yield rate, "prefill", 0, 0
            elif s.form == "prefill":
                yield rate, "decode", self.N, 0

    def fused(self, s: Situation, due: float) -> Iterator[Candidate]:
        assert s.prefill is not None
        prompts = [(one.start, one.num_tokens) for one in (*s.prefill.prompts, *s.waiting)]
        most = min(self.size - len(s.decoding), sum(count for _, count in prompts))
        fitting = [n for n in fine(most) if s.now_s + self.price(s, prompts, n)[1] <= due]
        if fitting:
            yield max(fitting) / self.price(s, prompts, max(fitting))[0], "fused", self.N, max(fitting)

    def price(self, s: Situation, prompts: list[tuple[int, int]], num_tokens: int) -> tuple[float, float]:
        chunks = list(s.decode.chunks)
        for start, count in prompts:
            taken = min(count, num_tokens)
            if taken:
                chunks.append(ChunkShape(start, taken, int(taken == count)))
            num_tokens -= taken
        price = self.cost.price(StepShape(tuple(chunks)), self.N)
        return price.expected_s, price.worst_s

    def least_harm(self, s: Situation) -> tuple[str, int, int]:
        """Where prompts are late too, the least of the worst; else they have a tenth of a step."""
        late = [
            ttft > 1.0 for ttft in Bullet(self.cost, self.N, self.spans).ttfts(s, self.shares[len(self.shares) // 2])
        ]
        is_late = any(late) if s.is_prefilling else sum(late) > len(late) - math.ceil(0.9 * len(late) - 1e-9)
        if is_late:
            return "lanes", self.balanced(s), 0
        assert s.prefill is not None
        prompts = [*s.prefill.prompts] if s.is_prefilling else [*s.prefill.prompts, *s.waiting]
        alone = s.now_s + s.decode_left * self.cost.price(s.decode, self.N).worst_s
        if all(one.due_s < math.inf for one in prompts) and alone <= min(map(self.due, s.decoding)):
            return "decode", self.N, 0
        return ("decode", self.N, 0) if s.is_stepping else ("prefill", 0, 0)

    def balanced(self, s: Situation) -> int:
        assert s.prefill is not None
        prefill, bullet = s.prefill, Bullet(self.cost, self.N, self.spans)
        prompts = [*prefill.prompts] if s.is_prefilling else [*prefill.prompts, *s.waiting]

        def worse(c: int) -> float:
            end = s.now_s + s.decode_left * self.cost.price(s.decode, c, (prefill.shape,)).expected_s
            gaps = [(end - one.last_s) / one.itl_s for one in s.decoding if one.itl_s is not None]
            means = [(end - o.first_s) / (o.num_said + 1) / o.tpot_s for o in s.decoding if o.tpot_s is not None]
            has_targets = all(one.due_s < math.inf for one in prompts)
            late = sorted(bullet.ttfts(s, c)) if has_targets else [0.0]
            place = len(late) if s.is_prefilling else math.ceil(0.9 * len(late) - 1e-9)
            return max(*gaps, *means, 0.0, late[place - 1])

        return min(self.shares, key=worse)
