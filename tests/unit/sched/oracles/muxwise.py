"""MuxWise's dispatcher (ASPLOS 2026, sections 3.2 to 3.4), written from the paper and from nothing else in Plait but
the values that describe a situation.

Where Plait differs on purpose: the paper's engine says a first token when its sequence joins the decode batch, Plait
says it when the prefill has ended, so what a step may take is what is left of TBT since each sequence's last token;
and a decision that falls into a step counts what is left of the step, and the next one for those who join it.
"""

from __future__ import annotations

import math

from plait.core.step import StepShape
from plait.cost.model import CostModel
from plait.sched.multiplex.situation import Situation

GRANULARITY = 16


class MuxWise:
    def __init__(self, cost: CostModel, num_units: int, num_layers: int) -> None:
        self.cost, self.N, self.N_T = cost, num_units, num_layers
        # Prefill has a multiple of 16 SMs, decode the rest: 12, 28, .. 92 of 108 and 20, 36, .. 116 of 132.
        least = num_units % GRANULARITY
        self.partitions = list(range(least if least > 4 else least + 16, num_units, GRANULARITY))

    def decide(self, s: Situation) -> tuple[str, int, int]:
        """(what runs, SMs of decode, N_PL)."""
        if s.prefill is None:
            return "decode", self.N, 0
        if not s.decoding:
            return "prefill", 0, 0
        qualified = [c for c in self.partitions if self.holds(s, c)]
        c = qualified[0] if qualified else self.partitions[-1]
        return "lanes", c, self.n_pl(s, c)

    def worst(self, s: Situation, shape: StepShape, c: int) -> float:
        """T_d_worst(c) = T_decode(D; c) * guard(c, P, D)."""
        assert s.prefill is not None
        return self.cost.price(shape, c, (s.prefill.shape,)).worst_s

    def holds(self, s: Situation, c: int) -> bool:
        end = s.now_s + s.decode_left * self.worst(s, s.decode, c)
        for one in s.decoding:
            if one.itl_s is not None and end > one.last_s + one.itl_s:
                return False
        for one in s.joining:
            if one.itl_s is not None and end + self.worst(s, s.merged, c) > one.last_s + one.itl_s:
                return False
        return True

    def n_pl(self, s: Situation, c: int) -> int:
        """ceil(T_d * N_T / T_P): launched layers outlast the decode step, never 0, never more than there are."""
        assert s.prefill is not None
        t_d = self.cost.price(s.decode, c, (s.prefill.shape,)).expected_s
        t_p = self.cost.price(s.prefill.shape, self.N - c, (s.decode,)).expected_s
        return max(1, min(self.N_T, math.ceil(t_d * self.N_T / t_p)))
