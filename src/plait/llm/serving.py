"""Serving: many requests through a client, so many at once, their answers in order.

Owns how many are in flight and what an interrupt leaves behind: nothing.
Invariant: memory is bounded by the results and `max_in_flight` requests; a request whose call ends early is aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from plait.core.client import Delta, EngineClient
from plait.core.errors import EngineStopped
from plait.core.request import FinishReason, Request

DeltaSink = Callable[[int, Delta], None]
"""Told the place of a request and its next delta."""


async def serve_all(
    client: EngineClient,
    requests: Sequence[Request],
    deltas: DeltaSink,
    finished: Callable[[int], None],
    max_in_flight: int,
) -> None:
    """Return when every request is answered. The first error ends the others and is raised itself."""
    slots = asyncio.Semaphore(max_in_flight)

    async def serve(place: int, request: Request) -> None:
        try:
            await _serve(client, request, place, deltas)
            finished(place)
        finally:
            slots.release()

    try:
        async with asyncio.TaskGroup() as group:
            for place, request in enumerate(requests):
                await slots.acquire()
                group.create_task(serve(place, request))
    except BaseExceptionGroup as trouble:
        raise _first(trouble) from None


async def _serve(client: EngineClient, request: Request, place: int, deltas: DeltaSink) -> None:
    is_whole = False
    try:
        async for delta in client.submit(request):
            if delta.finish_reason is FinishReason.ABORT:
                raise EngineStopped("the engine was closed while it answered")
            deltas(place, delta)
        is_whole = True
    finally:
        if not is_whole:
            await client.abort(request.id)


def _first(trouble: BaseExceptionGroup[BaseException]) -> BaseException:
    first = trouble.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
