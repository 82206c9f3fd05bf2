"""Incoming: a request's body, and whether its sender is still there.

Owns the limit on bytes and the watch for a client that leaves. Parses nothing but JSON's outside.
Invariant: no more than the limit and one piece of the network's is ever held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

from plait.api.bodies import JsonObject, read_object
from plait.api.body_shape import LARGE_BYTES
from plait.core.errors import RequestError

T = TypeVar("T")
BesideLoop = Callable[[Callable[[bytes], JsonObject], bytes], Awaitable[JsonObject]]

PIECE_S = 60.0
"""So long the next piece of a body may take."""


class ClientGone(Exception):
    """Nobody reads the answer any more."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body; `RequestError` 413 for one above the limit, before it has been read where its size is said."""
    return b"".join([piece async for piece in body_pieces(request, max_bytes, _too_large)])


async def body_pieces(
    request: Request, max_bytes: int, too_large: Callable[[int, int], RequestError]
) -> AsyncIterator[bytes]:
    """The body as it comes. `too_large` makes the error for one of so many bytes or more, of so many allowed."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        # Unpacked, a body may have a thousand times the bytes that were counted.
        raise RequestError(
            f"the content encoding is {encoding[:60]!r}; send the body as it is",
            status=415,
            code="unsupported_media_type",
        )
    said = request.headers.get("content-length", "")
    if said.isdecimal() and len(said) < 20 and int(said) > max_bytes:
        raise too_large(int(said), max_bytes)
    num_bytes = 0
    is_last = False
    while not is_last:
        piece, is_last = await next_piece(request)
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            raise too_large(num_bytes, max_bytes)
        yield piece


async def next_piece(request: Request, patience_s: float = PIECE_S) -> tuple[bytes, bool]:
    """What has come of the body, and whether it is the end; `ClientGone`, or `RequestError` for one who stalls."""
    try:
        async with asyncio.timeout(patience_s):
            message = await request.receive()
    except TimeoutError:
        raise RequestError(
            f"no more of the body came for {patience_s:g} s; send the request again", status=408, code="request_timeout"
        ) from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), not message.get("more_body", False)


async def read_json(request: Request, max_bytes: int, beside_loop: BesideLoop) -> JsonObject:
    """A JSON object, a large one read by `beside_loop`. A form's content type passes, because it is what `curl -d` says
    of everything.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind.startswith(("multipart/", "image/", "audio/", "video/")):
        raise RequestError(
            f"the content type is {kind[:60]!r}; send JSON as application/json",
            status=415,
            code="unsupported_media_type",
        )
    raw = await read_body(request, max_bytes)
    return read_object(raw) if len(raw) <= LARGE_BYTES else await beside_loop(read_object, raw)


async def while_there(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves: then `ClientGone`."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(num_bytes: int, max_bytes: int) -> RequestError:
    return RequestError(
        f"the body has {num_bytes:,} bytes or more; at most {max_bytes:,} are taken (--max-body-size)",
        status=413,
        code="body_too_large",
    )
