"""Streams: trouble behind the first object is told on the wire, whatever it is, and never as a trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import pytest
from starlette.types import Message

from plait.core.errors import EngineStopped
from plait.server.events import EventStream, Told, event
from plait.server.incoming import ClientGone


async def events(trouble: Exception, num_before: int, name: str | None) -> AsyncGenerator[bytes, None]:
    for number in range(num_before):
        yield event(b'{"number":%d}' % number, name)
    raise trouble


def streamed(trouble: Exception, num_before: int, *, has_named_events: bool = False) -> tuple[int, str, bool]:
    """Status, text, and whether the room was given back and learned what went wrong."""
    sent: list[Message] = []
    learned: list[BaseException | None] = []
    room = ExitStack()
    room.push(lambda kind, error, trace: learned.append(error))

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    source = events(trouble, num_before, "t" if has_named_events else None)
    stream = EventStream(source, room, has_named_events=has_named_events)
    asyncio.run(stream({"type": "http"}, receive, send))
    text = b"".join(message.get("body", b"") for message in sent).decode()
    assert not sent[-1].get("more_body", False)
    wanted = trouble.trouble if isinstance(trouble, Told) else trouble
    return sent[0]["status"], text, learned == [wanted]


@pytest.mark.parametrize(
    ("trouble", "status", "code"),
    [
        (EngineStopped("the engine stopped"), 503, "engine_stopped"),
        (ZeroDivisionError("secret"), 500, "internal_error"),
    ],
)
def test_any_trouble_is_an_error_object_before_the_first_object_and_behind_it(
    trouble: Exception, status: int, code: str
) -> None:
    found, text, is_back = streamed(trouble, 0)
    assert (found, json.loads(text)["error"]["code"], is_back) == (status, code, True)
    found, text, is_back = streamed(trouble, 2)
    told = text.removesuffix("\n\n").split("\n\n")
    assert (found, len(told), is_back) == (200, 3, True)
    assert json.loads(told[-1].removeprefix("data: "))["error"]["code"] == code
    assert "secret" not in text
    assert "[DONE]" not in text


def test_events_with_names_say_them() -> None:
    _, text, _ = streamed(EngineStopped("it stopped"), 1, has_named_events=True)
    first, last = text.removesuffix("\n\n").split("\n\n")
    assert first == 'event: t\ndata: {"number":0}'
    assert last.startswith("event: error\ndata: {")


def test_what_the_source_has_told_itself_is_told_once() -> None:
    found, text, is_back = streamed(Told(EngineStopped("it stopped")), 1, has_named_events=True)
    assert (found, text, is_back) == (200, 'event: t\ndata: {"number":0}\n\n', True)


def test_a_client_that_leaves_is_no_trouble_of_the_stream_and_its_room_learns_it() -> None:
    learned: list[type[BaseException] | None] = []
    room = ExitStack()
    room.push(lambda kind, error, trace: learned.append(kind))

    async def source() -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError

    asyncio.run(EventStream(source(), room)({"type": "http"}, receive, send))
    assert learned == [ClientGone]
