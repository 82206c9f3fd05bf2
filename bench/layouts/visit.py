"""Visit: one batch on one engine under one layout, and what came of it.

Owns the start and the end of the engine; nothing of a visit is left for the next one but the mapped weights.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from plait.build import LoadedModel, LocalEngine, start_engine
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.core.events import Event, Preempted, Scheduled, Submitted
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams

from .workload import Batch


@dataclass(slots=True)
class Watcher:
    """An event sink. `prompt_tokens`: from where on a chunk is an answer's."""

    prompt_tokens: int
    num_cached: int = 0
    num_preemptions: int = 0
    most_answering: int = 0
    num_steps: int = 0

    def __call__(self, event: Event) -> None:
        match event:
            case Scheduled(num_cached=num_cached):
                self.num_cached += num_cached
            case Preempted():
                self.num_preemptions += 1
            case Submitted(plan=plan):
                self.num_steps += 1
                answering = sum(chunk.start >= self.prompt_tokens for chunk in plan.chunks)
                self.most_answering = max(self.most_answering, answering)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Visit:
    layout: str
    seconds: float
    cpu_s: float
    """Of this process: the engine's thread and all workers."""
    num_tokens: int
    """Of prompts and answers, found in the cache or not."""
    num_output: int
    hit_fraction: float
    """Of prompt tokens, as they were scheduled; what a preemption finds again counts again."""
    most_answering: int
    num_steps: int
    num_preemptions: int
    digest: int = field(compare=False)
    """Of all answers: equal under every layout."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


class Refused(Exception):
    """A layout cannot hold the model in so much memory."""


def visit(
    model: LoadedModel,
    options: EngineOptions,
    batch: Batch,
    watch: Callable[[LocalEngine], Coroutine[None, None, None]] | None = None,
) -> Visit:
    """`watch` runs beside the batch until its end."""
    watcher = Watcher(min(map(len, batch.prompts)))
    try:
        engine = start_engine(options, model, watcher, print)
    except PlaitError as trouble:
        raise Refused(str(trouble)) from None
    try:
        began, cpu = time.perf_counter(), time.process_time()
        answers = asyncio.run(_watched(engine, batch, watch))
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    finally:
        engine.close()
    num_prompt = sum(map(len, batch.prompts))
    return Visit(
        options.kv_layout,
        seconds,
        cpu_s,
        batch.num_tokens,
        sum(map(len, answers)),
        watcher.num_cached / num_prompt,
        watcher.most_answering,
        watcher.num_steps,
        watcher.num_preemptions,
        hash(answers),
    )


async def _watched(
    engine: LocalEngine, batch: Batch, watch: Callable[[LocalEngine], Coroutine[None, None, None]] | None
) -> tuple[tuple[int, ...], ...]:
    watching = None if watch is None else asyncio.create_task(watch(engine))
    try:
        return await _all(engine, batch)
    finally:
        if watching is not None:
            watching.cancel()


async def _all(engine: LocalEngine, batch: Batch) -> tuple[tuple[int, ...], ...]:
    gate = asyncio.Semaphore(batch.users)
    sampling = SamplingParams(temperature=0.0, max_tokens=batch.output, ignore_eos=True)

    async def one(number: int) -> tuple[int, ...]:
        tokens: list[int] = []
        async with gate:
            request = Request(RequestId(f"bench-{number}"), batch.prompts[number], sampling)
            async for delta in engine.client.submit(request):
                tokens += delta.tokens
                if delta.error:
                    raise SystemExit(f"request {number} failed: {delta.error}")
        return tuple(tokens)

    return tuple(await asyncio.gather(*(one(number) for number in range(len(batch.prompts)))))
