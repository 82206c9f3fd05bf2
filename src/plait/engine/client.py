"""Client: the engine seen from asyncio.

Owns the queues between the engine's thread and one event loop. Implements `EngineClient` for everything above, and
`Outbox` for the engine. Invariant: one `call_soon_threadsafe` per engine tick, however many deltas it made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from plait.core.client import Delta, Health, ModelInfo
from plait.core.errors import EngineStopped, InvariantError, RequestError
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.engine.inbox import Abort, Arrive, Inbox

Answer = Delta | RequestError | EngineStopped


class AsyncClient:
    """One per engine and event loop; the loop is the one that runs at the first `submit`."""

    def __init__(self, model: ModelInfo, inbox: Inbox) -> None:
        self._model = model
        self._inbox = inbox
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[RequestId, asyncio.Queue[Answer]] = {}
        self._tick: list[tuple[RequestId, Answer]] = []
        self._health: Callable[[], Health] = lambda: Health(False, 0, 0, "not started")
        self._stopped: EngineStopped | None = None

    @property
    def model(self) -> ModelInfo:
        return self._model

    def attach(self, health: Callable[[], Health]) -> None:
        """Give the client its engine's health; called once, when both exist."""
        self._health = health

    async def submit(self, request: Request) -> AsyncIterator[Delta]:
        queue = self._register(request)
        left = request.n
        try:
            self._inbox.put(Arrive(request))
            while left:
                answer = await queue.get()
                if not isinstance(answer, Delta):
                    left = 0
                    raise answer
                left -= answer.finish_reason is not None
                yield answer
        finally:
            del self._queues[request.id]
            if left:
                self._inbox.put(Abort(request.id))

    async def abort(self, request: RequestId) -> None:
        self._inbox.put(Abort(request))

    def health(self) -> Health:
        return Health(False, 0, 0, str(self._stopped)) if self._stopped else self._health()

    def _register(self, request: Request) -> asyncio.Queue[Answer]:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise InvariantError("a client serves one event loop; make another client for another loop")
        if self._stopped is not None:
            raise self._stopped
        if request.id in self._queues:
            raise RequestError(f"request id {request.id!r} is in use; choose another", param="request_id")
        queue = self._queues[request.id] = asyncio.Queue()
        return queue

    def put(self, request: RequestId, answer: Delta | RequestError) -> None:
        self._tick.append((request, answer))

    def flush(self) -> None:
        if self._tick and self._loop is not None:
            self._loop.call_soon_threadsafe(self._deliver, self._tick)
            self._tick = []

    def stopped(self, error: EngineStopped) -> None:
        """The engine's thread has ended: every open request gets the error."""
        self._stopped = error
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail_all, error)

    def _deliver(self, answers: list[tuple[RequestId, Answer]]) -> None:
        for request, answer in answers:
            queue = self._queues.get(request)
            if queue is not None:
                queue.put_nowait(answer)

    def _fail_all(self, error: EngineStopped) -> None:
        for queue in self._queues.values():
            queue.put_nowait(error)
