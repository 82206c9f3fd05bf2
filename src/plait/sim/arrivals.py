"""Arrivals: who asks for how much, and when. Synthetic load, and the requests that it stands for.

Owns the seeded Poisson generator. Traces from files are read by `traces` and laid out by `workload`. Knows no engine.
Invariant: arrival times never go back; equal seeds give equal requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from plait.core.errors import UsageError
from plait.core.ids import RequestId
from plait.core.request import Request, Slo
from plait.core.sampling import SamplingParams
from plait.sim.prompts import made_up_prompt


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace: its time and its lengths in tokens."""

    at_s: float
    num_prompt: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    request: Request


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal lengths in tokens: `mean` before cutting to 1 .. `longest`, `sigma` of the logarithm (0: all equal)."""

    mean: float
    sigma: float
    longest: int

    def draw(self, rng: random.Random) -> int:
        length = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return max(1, min(self.longest, round(length)))


def poisson_trace(
    requests_per_s: float, num_requests: int, prompt: Lengths, output: Lengths, seed: int
) -> list[TraceRow]:
    """Independent arrivals at a mean rate; the first one comes after the first gap."""
    if not requests_per_s > 0:
        raise UsageError(f"the arrival rate is {requests_per_s} requests/s; it must be positive")
    rng = random.Random(seed)
    rows: list[TraceRow] = []
    at_s = 0.0
    for _ in range(num_requests):
        at_s += rng.expovariate(requests_per_s)
        rows.append(TraceRow(at_s, prompt.draw(rng), output.draw(rng)))
    return rows


def arrivals_of(rows: Iterable[TraceRow], vocab_size: int, slo: Slo | None = None) -> Iterator[Arrival]:
    """Requests for the rows of a trace: made-up prompts that share no prefix, so that none is looked for or kept, and
    exactly the row's output tokens.
    """
    for index, row in enumerate(rows):
        request = Request(
            id=RequestId(f"trace-{index}"),
            prompt=made_up_prompt(index, row.num_prompt, vocab_size),
            sampling=SamplingParams(seed=index, max_tokens=row.num_output, ignore_eos=True),
            slo=Slo() if slo is None else slo,
            cache_prefix=False,
            ids_below=vocab_size,
        )
        yield Arrival(row.at_s, request)
