"""Connections that cost more than they should: heads without end, silence, readers that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from plait.server.protocol import HttpLimits, limited_http

PATIENCE_S = 20.0


class Listener(uvicorn.Server):
    """A server that tells its port."""

    @property
    def port(self) -> int:
        return int(self.servers[0].sockets[0].getsockname()[1])


async def say_ok(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def listening(app: ASGIApp, limits: HttpLimits) -> AsyncIterator[Listener]:
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, http=limited_http(limits), lifespan="off", ws="none", log_config=None
    )
    server = Listener(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        await serving


async def answer_to(port: int, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Everything that comes until the other end closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        return await reader.read()
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


def within_patience(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work()

    asyncio.run(limited())


def status_and_code(raw: bytes) -> tuple[int, str]:
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["error"]["code"]


def test_a_head_without_end_is_refused_before_it_fills_the_memory() -> None:
    async def work() -> None:
        async with listening(say_ok, HttpLimits(head_bytes=4096)) as server:
            long_line = b"x" * 3000
            for pieces in (
                [b"GET /", long_line, long_line],
                [b"GET / HTTP/1.1\r\na: ", long_line, long_line],
                [b"GET / HTTP/1.1\r\n", *[b"a%d: b\r\n" % place for place in range(900)]],
                [b"GET / HTTP/1.1\r\na: " + long_line + b"\r\nb: " + long_line + b"\r\nconnection: close\r\n\r\n"],
            ):
                told = await answer_to(server.port, *pieces)
                assert status_and_code(told) == (431, "headers_too_large")
            fits = b"GET / HTTP/1.1\r\na: " + long_line + b"\r\nconnection: close\r\n\r\n"
            assert (await answer_to(server.port, fits)).endswith(b"ok")

    within_patience(work)


def test_what_is_no_http_is_refused_as_every_error_is() -> None:
    async def work() -> None:
        async with listening(say_ok, HttpLimits()) as server:
            for raw in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"):
                assert status_and_code(await answer_to(server.port, raw)) == (400, "invalid_http")

    within_patience(work)


def test_who_says_nothing_or_only_half_a_head_is_let_go() -> None:
    async def work() -> None:
        async with listening(say_ok, HttpLimits(head_s=0.2)) as server:
            assert await answer_to(server.port) == b""
            drops = [b"GET / HTTP/1.1\r\n", *[b"a: b\r\n" for _ in range(100)]]
            told = await answer_to(server.port, *drops, pause_s=0.01)
            # What was still on its way when the server closed resets the connection.
            assert told == b"reset" or status_and_code(told) == (408, "request_timeout")
            whole = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"
            assert (await answer_to(server.port, whole)).endswith(b"ok")
            assert not server.server_state.connections

    within_patience(work)


def test_connections_beyond_the_limit_are_refused_and_those_there_are_served() -> None:
    async def work() -> None:
        async with listening(say_ok, HttpLimits(max_connections=3)) as server:
            there = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            assert status_and_code(await answer_to(server.port)) == (503, "too_many")
            reader, writer = there[0]
            writer.write(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"ok")
            for _, writer in there:
                writer.close()
            while server.server_state.connections:
                await asyncio.sleep(0.01)
            whole = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"
            assert (await answer_to(server.port, whole)).endswith(b"ok")

    within_patience(work)


def test_a_reader_that_does_not_read_is_cut_off_and_its_request_is_told() -> None:
    told: list[str] = []

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            told.append("gone")

        watching = asyncio.create_task(watch())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not watching.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)

    async def work() -> None:
        async with listening(flood, HttpLimits(unread_s=0.3)) as server:
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            # One byte at a time is no reading either.
            for _ in range(200):
                await asyncio.sleep(0.02)
                if told:
                    break
                connection.recv(1)
            connection.close()
            assert told == ["gone"]

    within_patience(work)


def test_who_leaves_with_more_requests_in_line_leaves_the_first_one_too() -> None:
    told: list[str] = []

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        told.append("begun")
        while (await receive())["type"] != "http.disconnect":
            pass
        told.append("gone")

    async def work() -> None:
        async with listening(wait, HttpLimits()) as server:
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 3)
            while not told:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            connection.close()
            while told != ["begun", "gone"]:
                await asyncio.sleep(0.01)

    within_patience(work)
