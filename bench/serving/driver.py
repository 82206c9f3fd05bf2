"""Driver: sends a workload's requests to an engine when they are due, and waits for all answers.

Owns the timing of arrivals and the warm-up. Knows an engine only as something that answers one request.
Invariant: a late start counts against the engine, because times run from when a request was due.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol

from .figures import Answer, Figures, figures_of
from .workloads import Ask, Draw, Sizes, Workload, crowd


class Engine(Protocol):
    async def answer(self, ask: Ask, due_s: float, *, stream: bool) -> Answer:
        """Answer one request greedily with exactly as many tokens as it asks for. Trouble is `Answer.error`."""


WARM_UP = Sizes(prompt_tokens=64, output_tokens=8, num_requests=8)


async def run_workload(engine: Engine, workload: Workload, sizes: Sizes, shapes: random.Random, draw: Draw) -> Figures:
    asks = workload.asks(sizes, shapes, draw)
    start_s = time.perf_counter()

    async def one(ask: Ask) -> Answer:
        due_s = start_s + ask.arrival_s
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        return await engine.answer(ask, due_s, stream=workload.streams)

    return figures_of(workload, await asyncio.gather(*(one(ask) for ask in asks)))


async def warm_up(engine: Engine, draw: Draw) -> str:
    """Answer a few requests that are not counted; an error, if there was one."""
    asks = crowd(WARM_UP, random.Random(0), draw)
    now = time.perf_counter()
    answers = await asyncio.gather(*(engine.answer(ask, now, stream=True) for ask in asks))
    return next((one.error for one in answers if one.error), "")
