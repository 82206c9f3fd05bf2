"""Drive: sends asks when they are due, or so many at a time, and waits for the answers.

Owns the pace. Knows an engine only as a `Target`.
Invariant: with a rate, a late start counts against the engine and not for it, because times run from when an ask was
due; never are more than `concurrency` asks open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

import uvloop

from plait.cli.load.asks import Answer, Ask, Target

Told = Callable[[Answer], None]
T = TypeVar("T")


def run(work: Coroutine[None, None, T]) -> T:
    """The result of `work`, on the kind of event loop that the server runs on: a client on the same machine takes
    processor time from it, with asyncio's own loop twice as much for every token.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _nobody(answer: Answer) -> None:
    """For runs that show no progress."""


async def at_times(
    target: Target, asks: Sequence[Ask], concurrency: int | None = None, told: Told = _nobody
) -> list[Answer]:
    """Each at its `arrival_s`; `concurrency` None: any number at once."""
    start_s = time.perf_counter()
    gate = asyncio.Semaphore(concurrency or max(1, len(asks)))

    async def one(ask: Ask) -> Answer:
        due_s = start_s + ask.arrival_s
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        async with gate:
            answer = await target.answer(ask, due_s)
        told(answer)
        return answer

    return await _all([one(ask) for ask in asks])


async def in_turn(target: Target, asks: Sequence[Ask], concurrency: int, told: Told = _nobody) -> list[Answer]:
    """`concurrency` at a time: the next is due when one before it has ended."""
    left = list(enumerate(asks))[::-1]
    answers: list[Answer | None] = [None] * len(asks)

    async def worker() -> None:
        while left:
            place, ask = left.pop()
            answer = await target.answer(ask, time.perf_counter())
            answers[place] = answer
            told(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(asks))):
            group.create_task(worker())
    return [answer for answer in answers if answer is not None]


async def _all(work: Sequence[Coroutine[None, None, Answer]]) -> list[Answer]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]
