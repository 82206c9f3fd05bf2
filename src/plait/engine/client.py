"""Client: the engine seen from asyncio.

Owns the queues between the engine's thread and one event loop. Implements `EngineClient` for everything above, and
`Outbox` for the engine.
Invariants: one `call_soon_threadsafe` per engine tick, however many deltas it made; a loop that falls behind finds what
came meanwhile joined, one delta a choice, so that its work does not grow with its delay; a request id stays in use
until the engine has given its last answer, so an answer never reaches a later request with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from plait.core.client import Delta, Health, ModelInfo, joined
from plait.core.errors import EngineStopped, InvariantError, RequestError
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.engine.inbox import Abort, Arrive, Inbox

Answer = Delta | RequestError
Told = Answer | EngineStopped
"""What a waiting client may be told."""


@dataclass(slots=True, eq=False)
class _OpenRequest:
    """A request to which the engine owes answers: `left` of its choices have not ended."""

    left: int
    unread: list[Told] = field(default_factory=list)
    is_heard: bool = True
    """False: its iterator was closed, and what still comes is dropped."""
    _waiter: asyncio.Future[None] | None = None
    """Of whoever waits for something to read. Not a queue of asyncio's: this is done for every token."""
    _end: asyncio.Future[None] | None = None
    """Of those who wait for the last answer, read or not."""

    def tell(self, told: Told) -> None:
        self.unread.append(told)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> list[Told]:
        """All that is unread, at least one."""
        if not self.unread:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken, self.unread = self.unread, []
        return taken

    def ended(self) -> None:
        """The id is free."""
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    async def wait_for_end(self) -> None:
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._end)


class AsyncClient:
    """One per engine and event loop; the loop is the one that runs at the first `submit`."""

    def __init__(self, model: ModelInfo, inbox: Inbox, max_unread: int | None = None) -> None:
        """`max_unread`: answers that one request may leave unread; at more it is aborted, and what waits of a choice is
        read as one. None: as many as come, each read as it was made, whatever the reader's pace.
        """
        self._model = model
        self._max_unread = max_unread
        self._inbox = inbox
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[RequestId, _OpenRequest] = {}
        self._tick: list[tuple[RequestId, Answer]] = []
        self._health: Callable[[], Health] = lambda: Health(False, 0, 0, "not started")
        self._stop_reason: str | None = None

    @property
    def model(self) -> ModelInfo:
        return self._model

    def attach(self, health: Callable[[], Health]) -> None:
        """Give the client its engine's health; called once, when both exist."""
        self._health = health

    async def submit(self, request: Request) -> AsyncGenerator[Delta, None]:
        opened = self._register(request)
        left = request.n
        try:
            self._inbox.put(Arrive(request))
            while True:
                unread = await opened.take()
                for told in unread if self._max_unread is None else _joined(unread):
                    if not isinstance(told, Delta):
                        raise told
                    left -= told.finish_reason is not None
                    yield told
                if left == 0:
                    return
        finally:
            if self._open.get(request.id) is opened:
                opened.is_heard = False
                self._inbox.put(Abort(request.id))

    async def abort(self, request: RequestId) -> None:
        opened = self._open.get(request)
        self._inbox.put(Abort(request))
        if opened is not None:
            await opened.wait_for_end()

    def health(self) -> Health:
        return self._health() if self._stop_reason is None else Health(False, 0, 0, self._stop_reason)

    def put(self, request: RequestId, answer: Answer) -> None:
        self._tick.append((request, answer))

    def flush(self) -> None:
        if self._tick:
            self._call_soon(partial(self._deliver, self._tick))
            self._tick = []

    def stopped(self, reason: str) -> None:
        """The engine's thread has ended: every open request is told so, and every later one."""
        self._stop_reason = reason
        self._call_soon(partial(self._fail_all, reason))

    def _register(self, request: Request) -> _OpenRequest:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise InvariantError("a client serves one event loop; make another client for another loop")
        # In this order: `stopped` sets its reason before it looks for the loop, so one of the two sees the other.
        if self._stop_reason is not None:
            raise EngineStopped(self._stop_reason)
        if request.id in self._open:
            raise RequestError(f"request id {request.id!r} is in use; choose another", param="request_id")
        opened = self._open[request.id] = _OpenRequest(request.n)
        return opened

    def _call_soon(self, call: Callable[[], None]) -> None:
        """Let the client's loop run `call`; from the engine's thread."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # A loop that was closed meanwhile has nobody left who waits; that is no fault of the engine.
            if not self._loop.is_closed():
                raise

    def _deliver(self, answers: list[tuple[RequestId, Answer]]) -> None:
        for request, answer in answers:
            opened = self._open.get(request)
            if opened is None:
                continue
            opened.left = opened.left - (answer.finish_reason is not None) if isinstance(answer, Delta) else 0
            if opened.left == 0:
                del self._open[request]
                opened.ended()
            if not opened.is_heard:
                continue
            if self._max_unread is not None and len(opened.unread) >= self._max_unread:
                self._give_up(request, opened, self._max_unread)
            else:
                opened.tell(answer)

    def _give_up(self, request: RequestId, opened: _OpenRequest, max_unread: int) -> None:
        """Nobody takes what is made: stop making it, so that it does not fill the memory."""
        opened.is_heard = False
        opened.tell(
            RequestError(
                f"the answer was not read: {max_unread} parts of it wait, which is the limit; read it as it comes, or "
                "ask for less",
                status=408,
                code="reader_too_slow",
            )
        )
        self._inbox.put(Abort(request))

    def _fail_all(self, reason: str) -> None:
        for opened in self._open.values():
            opened.tell(EngineStopped(reason))
            opened.ended()
        self._open.clear()


def _joined(told: Sequence[Told]) -> Iterator[Told]:
    """Deltas of the same choice as one, then the end, if there is one that is no delta."""
    if len(told) == 1:
        yield told[0]
        return
    by_choice: dict[int, list[Delta]] = {}
    for one in told:
        if isinstance(one, Delta):
            by_choice.setdefault(one.choice, []).append(one)
    yield from (joined(deltas) for deltas in by_choice.values())
    if not isinstance(told[-1], Delta):
        yield told[-1]
