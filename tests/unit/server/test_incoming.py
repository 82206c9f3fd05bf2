"""Bodies that stall, and work that is given up when its client leaves."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from plait.core.errors import RequestError
from plait.server.incoming import ClientGone, next_piece, read_body, while_there


def request_that_brings(*messages: Message) -> Request:
    """Brings these, and then nothing for ever."""
    left = list(messages)

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return Request({"type": "http", "headers": []}, receive)


def test_a_body_that_stalls_is_refused_and_one_that_comes_is_read() -> None:
    request = request_that_brings({"type": "http.request", "body": b"ab", "more_body": True})

    async def read() -> None:
        assert await next_piece(request) == (b"ab", False)
        with pytest.raises(RequestError, match="no more of the body came") as caught:
            await next_piece(request, patience_s=0.01)
        assert caught.value.status == 408

    asyncio.run(read())


def test_a_client_that_leaves_ends_its_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def leave() -> None:
        with pytest.raises(ClientGone):
            await while_there(request_that_brings({"type": "http.disconnect"}).receive, work())

    asyncio.run(leave())
    assert ended == ["work"]


@pytest.mark.parametrize(
    ("encoding", "is_taken"), [(b"gzip", False), (b"br, identity", False), (b"identity", True), (b"", True)]
)
def test_a_packed_body_is_refused_as_that(encoding: bytes, is_taken: bool) -> None:
    request = request_that_brings({"type": "http.request", "body": b"ab"})
    request.scope["headers"] = [(b"content-encoding", encoding)]
    if is_taken:
        assert asyncio.run(read_body(request, 10)) == b"ab"
        return
    with pytest.raises(RequestError, match="content encoding is") as caught:
        asyncio.run(read_body(request, 10))
    assert caught.value.status == 415
