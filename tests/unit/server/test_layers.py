"""Layers: what is sent behind the start of a reply goes past them, and a request leaves nothing for the collector."""

from __future__ import annotations

import asyncio
import gc
import weakref

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Scope

from plait.server.events import WIRE
from plait.server.identity import Keys
from plait.server.layers import Layers, layered


class Connection:
    """The server's side of one request, which knows its scope as uvicorn's does."""

    def __init__(self, path: str) -> None:
        self.scope: Scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"",
            "headers": [],
            "app": None,
        }
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


def answered(path: str) -> Connection:
    async def fine(request: Request) -> Response:
        assert callable(request.scope[WIRE])
        return Response(b"fine")

    async def faulty(request: Request) -> Response:
        raise ZeroDivisionError

    app = layered([Route("/fine", fine), Route("/faulty", faulty)], Layers(Keys(()), (), lambda: "x", lambda: 0.0))
    connection = Connection(path)

    async def serve() -> None:
        try:
            await app(connection.scope, connection.receive, connection.send)
        except ZeroDivisionError:
            assert path == "/faulty"

    asyncio.run(serve())
    return connection


def test_replies_go_through_and_name_their_request() -> None:
    for path, status in (("/fine", 200), ("/faulty", 500), ("/nothing", 404)):
        start, *_ = answered(path).sent
        assert start["status"] == status
        if status != 500:
            assert dict(start["headers"])[b"x-request-id"] == b"req-x"


def test_a_request_is_gone_without_a_collection() -> None:
    gc.disable()
    try:
        left = weakref.ref(answered("/fine"))
        assert left() is None
    finally:
        gc.enable()
