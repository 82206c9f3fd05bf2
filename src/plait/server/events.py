"""Events: server-sent events over HTTP.

Owns the wire form of a stream: its headers, events, comments while nothing comes, the end mark. Closes the source when
the client leaves, whatever the source is at.
Invariant: an error before the first event is an ordinary error reply, because nothing was sent yet; a stream that went
well ends in exactly one [DONE].
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plait.api.errors import error_body
from plait.core.errors import EngineStopped, RequestError
from plait.server.incoming import ClientGone, while_there
from plait.server.replies import as_request_error, error_reply, one_line

PING_S = 15.0
"""Proxies drop a connection on which nothing was sent for a minute, some earlier."""

FIRST_EVENT_S = 2.0
"""So long the status waits for the first event: what is refused is refused by then."""

WIRE = "plait.wire"
"""In a scope: the `send` below all layers. These change the start of a reply and nothing behind it, so what is sent for
every token goes there at once.
"""

_LOG = logging.getLogger("plait.server")
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: bytes, name: str | None = None) -> bytes:
    """One event on the wire."""
    return b"data: %b\n\n" % data if name is None else b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class Told(Exception):
    """Trouble that the source of a stream has told its client in a way of its own: nothing more is to be said."""

    def __init__(self, trouble: RequestError | EngineStopped) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


class EventStream(Response):
    """`events`: one or several at a time, as `event` makes them; what it raises is told the client. `room` is given
    back when the stream ends, however it ends, and learns what went wrong. With `has_named_events` the last of them is
    the end mark.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], room: ExitStack, *, has_named_events: bool = False) -> None:
        super().__init__()
        self._has_named_events = has_named_events
        self._events = events
        self._room = room
        self._trouble: BaseException | None = None
        """What the client was told of."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._room:
                await while_there(receive, self._tell(scope, receive, send))
                if self._trouble is not None:
                    raise self._trouble
        except ClientGone:
            return
        except Exception as trouble:
            if trouble is not self._trouble:
                raise
        finally:
            # It knows this frame: kept, the two would be garbage that only a collection finds.
            self._trouble = None

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = asyncio.ensure_future(anext(events, None))
            try:
                await asyncio.wait((first,), timeout=FIRST_EVENT_S)
                if first.done() and (trouble := first.exception()) is not None:
                    self._trouble = trouble
                    await error_reply(_told(trouble, scope))(scope, receive, send)
                    return
                await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self._extra()]})
                await self._tell_all(first, events, _Line(scope.get(WIRE, send)), scope)
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    async def _tell_all(
        self, first: asyncio.Future[bytes | None], rest: AsyncIterator[bytes], line: _Line, scope: Scope
    ) -> None:
        pinging = asyncio.ensure_future(line.ping_while_idle())
        try:
            if (said := await first) is not None:
                await line.tell(said)
            async for said in rest:
                await line.tell(said)
            await line.end(b"" if self._has_named_events else event(b"[DONE]"))
        except Told as told:
            self._trouble = told.trouble
            await line.end(b"")
        except Exception as trouble:  # the outermost loop of a stream: its status was sent, so it is told here
            self._trouble = trouble
            said = one_line(error_body(_told(trouble, scope)))
            await line.end(event(said, "error" if self._has_named_events else None))
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)

    def _extra(self) -> list[tuple[bytes, bytes]]:
        """Headers that were set on the response before it was sent; those of an empty body do not hold for a stream."""
        return [(name, value) for name, value in self.raw_headers if name not in (b"content-length", b"content-type")]


def _told(trouble: BaseException, scope: Scope) -> RequestError:
    """What a client is told; what is our own fault goes to the log whole."""
    if not isinstance(trouble, RequestError | EngineStopped):
        name = scope.get("state", {}).get("request_id", "")
        _LOG.error("request failed", exc_info=trouble, extra={"fields": {"request_id": name}})
    return as_request_error(trouble)


class _Line:
    """The way to the client, once the status was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_idle = True

    async def tell(self, said: bytes) -> None:
        self._is_idle = False
        await self._send({"type": "http.response.body", "body": said, "more_body": True})

    async def end(self, last: bytes) -> None:
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def ping_while_idle(self) -> None:
        while True:
            self._is_idle = True
            await asyncio.sleep(PING_S)
            if self._is_idle:
                await self._send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
