"""Protocol: what a connection may cost before and beside the request that it carries.

Owns the limits on heads, on idle and unread connections, and on how many there are; uvicorn parses. Knows no route.
Invariants: memory and time of a connection are bounded whatever its other end sends or does not read; when it is lost,
every request on it is told, also those in front of pipelined ones.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import ClassVar

import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from plait.api.errors import error_body
from plait.core.errors import RequestError

KIB = 1024
MAX_CONNECTIONS = 4096
LINGER_S = 2.0
"""So long one who was refused may go on talking before the connection ends."""
_SPARE_DESCRIPTORS = 128
"""For files, the store, ledgers and the engine's own."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`unread_s`: how long a client may leave unread what does not fit the buffers any more."""

    head_bytes: int = 64 * KIB
    head_s: float = 30.0
    unread_s: float = 60.0
    max_connections: int = MAX_CONNECTIONS


def limits_of_process() -> HttpLimits:
    """As many connections as the process may have descriptors, up to the default; raises its soft limit for it."""
    wanted = MAX_CONNECTIONS + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = wanted if soft == resource.RLIM_INFINITY else soft
    return HttpLimits(max_connections=max(1, min(wanted, room) - _SPARE_DESCRIPTORS))


def limited_http(limits: HttpLimits) -> type[LimitedHttp]:
    """A protocol class for uvicorn, which makes one object of it for every connection."""

    class Limited(LimitedHttp):
        LIMITS = limits

    return Limited


class _HeadTooLarge(Exception):
    """Raised through the parser, which stops at it."""


class LimitedHttp(HttpToolsProtocol):
    LIMITS: ClassVar[HttpLimits] = HttpLimits()

    _patience: asyncio.TimerHandle | None = None
    """Runs until a head is whole."""
    _unread: asyncio.TimerHandle | None = None
    """Runs while the write buffer is full."""
    _linger: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None
    """The request in front: `cycle` is the one that came last."""
    _head_bytes = 0
    _is_in_head = False
    _is_deaf = False
    """It was refused; what still comes is dropped."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.LIMITS.max_connections:
            self._refuse(503, f"{self.LIMITS.max_connections} connections are open; try again later", "too_many")
            return
        self._patience = self.loop.call_later(self.LIMITS.head_s, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._patience, self._unread, self._linger):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        super().data_received(data)
        if self._is_in_head and not self._is_deaf:
            self._head_bytes += len(data)
            if self._head_bytes > self.LIMITS.head_bytes:
                self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0
        if self._patience is None:
            self._patience = self.loop.call_later(self.LIMITS.head_s, self._lose_patience)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.LIMITS.head_bytes:
            self._head_bytes = self.LIMITS.head_bytes + 1
            raise _HeadTooLarge
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > self.LIMITS.head_bytes:
            self._refuse_head()
        else:
            self._refuse(400, "what came is no request of HTTP/1.1", "invalid_http")

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.LIMITS.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            # Closing would wait for a reader that has had all this time.
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _lose_patience(self) -> None:
        self._patience = None
        if self._is_in_head:
            self._refuse(408, f"no whole head of a request came in {self.LIMITS.head_s:g} s", "request_timeout")
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        message = f"the request's line and headers have more than {self.LIMITS.head_bytes:,} bytes, which is the limit"
        self._refuse(431, message, "headers_too_large")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer without any route, and close. In the midst of another answer there is nothing to say."""
        self._is_deaf = True
        if self._answering is not None and not self._answering.response_complete:
            self.transport.close()
            return
        kind = "service_unavailable" if status == 503 else "invalid_request_error"
        body = orjson.dumps(error_body(RequestError(message, status=status, kind=kind, code=code)))
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
            b"x-should-retry: %s\r\n\r\n" % (len(body), b"true" if status == 503 else b"false")
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        if self.transport.can_write_eof():
            # Closing while more is on its way would reset the connection, and the answer would be lost with it.
            self.transport.write_eof()
            self._linger = self.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self.transport.close()
