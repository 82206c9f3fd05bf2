"""Bullet's scheduler (ASPLOS 2026, sections 2.3 to 2.5 and Algorithm 1), written from the paper and from nothing else
in Plait but the values that describe a situation. Slow and plain on purpose.

Read as: t time, a arrival, d decode start, k tokens since, N units, n layers, T_hat the estimator's prediction in the
present company. Where the paper says nothing: okT and okD mean that a split exists, respectively that TTFT holds under
the split that decode needs; "balanced" minimises the larger of P90 TTFT / SLO and P90 TPOT / SLO; "more SMs" near the
end of the last prefill is half of what prefill has; a skipped step takes as long as the step that is skipped.
"""

from __future__ import annotations

import math

from plait.core.step import ChunkShape, StepShape
from plait.cost.model import CostModel
from plait.sched.multiplex.situation import Decoding, Prompt, Situation

L_STEP = 4
TPC = 2


def p90(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.9 * len(values) - 1e-9) - 1] if values else 0.0


class Bullet:
    def __init__(self, cost: CostModel, num_units: int, num_layers: int) -> None:
        self.cost, self.N, self.n = cost, num_units, num_layers
        self.splits = [c for c in range(1, num_units) if c % TPC == 0]

    def decide(self, s: Situation) -> tuple[str, int, float]:
        """(what runs, units of decode, when to look again)."""
        if s.prefill is None:
            return "decode", self.N, math.inf
        if not s.decoding:
            return "prefill", 0, math.inf
        holding = [c for c in self.splits if self.ok_d(s, c)]
        c = min(holding) if holding else max(self.splits)
        ok_t = self.ok_t(s, c)
        step = self.t_decode(s, c)
        if not ok_t and not s.is_stepping and self.keeps_mean_without_a_step(s, step):
            return "prefill", 0, s.now_s + step
        if not holding and not ok_t:
            return "lanes", min(self.splits, key=lambda x: self.worse(s, x)), math.inf
        if s.waiting or s.suspended is not None:
            return "lanes", c, math.inf
        layers_left = s.prefill.left * self.n
        if layers_left > L_STEP + 1e-9 * self.n:
            layer = self.t_prefill(s, c) / self.n
            return "lanes", c, s.now_s + (layers_left - L_STEP) * layer
        grown = c + (self.N - c) // 2
        return "lanes", max([c, *(x for x in self.splits if x <= grown)]), math.inf

    # The estimator.

    def t_decode(self, s: Situation, c: int) -> float:
        assert s.prefill is not None
        return self.cost.price(s.decode, c, (s.prefill.shape,)).expected_s

    def t_prefill(self, s: Situation, c: int) -> float:
        assert s.prefill is not None
        return self.cost.price(s.prefill.shape, self.N - c, (s.decode,)).expected_s

    def t_alone(self, prompt: Prompt, c: int) -> float:
        shape = StepShape((ChunkShape(prompt.start, prompt.num_tokens, 1),))
        return self.cost.price(shape, self.N - c).expected_s

    # TPOT_i(t) = (t - d_i) / (tokens since d_i), with the predicted next step.

    def tpots(self, s: Situation, more_s: float) -> list[float]:
        return [self.tpot(s, one, more_s) for one in s.decoding if one.tpot_s is not None]

    def tpot(self, s: Situation, one: Decoding, more_s: float) -> float:
        assert one.tpot_s is not None
        return ((s.now_s - one.first_s) + more_s) / (one.num_said + 1) / one.tpot_s

    def ok_d(self, s: Situation, c: int) -> bool:
        return p90(self.tpots(s, s.decode_left * self.t_decode(s, c))) <= 1.0

    def keeps_mean_without_a_step(self, s: Situation, step: float) -> bool:
        return p90(self.tpots(s, step + step)) <= 1.0

    # TTFT_i(t) = (t - a_i) + wait + remaining prefill.

    def ttfts(self, s: Situation, c: int) -> list[float]:
        assert s.prefill is not None
        done = s.now_s + s.prefill.left * self.t_prefill(s, c)
        found = [self.ttft(one, done) for one in s.prefill.prompts]
        if not s.is_prefilling:
            for one in s.waiting:
                done += self.t_alone(one, c)
                found.append(self.ttft(one, done))
        return found

    def ttft(self, one: Prompt, done: float) -> float:
        return (done - one.arrival_s) / (one.due_s - one.arrival_s)

    def ok_t(self, s: Situation, c: int) -> bool:
        ttfts = self.ttfts(s, c)
        return max(ttfts) <= 1.0 if s.is_prefilling else p90(ttfts) <= 1.0

    def worse(self, s: Situation, c: int) -> float:
        ttfts = self.ttfts(s, c)
        tpot = p90(self.tpots(s, s.decode_left * self.t_decode(s, c)))
        return max(tpot, max(ttfts) if s.is_prefilling else p90(ttfts))

    # The queue: ascending predicted prefill time, without a move that pushes somebody past its SLO.

    def order(self, arrived: list[Prompt], units: int, start: float) -> list[Prompt]:
        line: list[Prompt] = []
        took = {one.seq: self.t_alone(one, units) for one in arrived}
        for one in arrived:
            place = len(line)
            while place > 0 and took[one.seq] < took[line[place - 1].seq]:
                other = line[place - 1]
                would_end = start + sum(took[x.seq] for x in line[:place])
                pushed = would_end <= other.due_s < would_end + took[one.seq]
                if pushed:
                    break
                place -= 1
            line.insert(place, one)
        return line
