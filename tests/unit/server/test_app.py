"""A request that the end of the server cuts short."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import Message, Scope
from tests.unit.api.byte_text import MODEL, byte_text
from tests.unit.batch.scripted_client import ScriptedClient

from plait.server.app import make_app
from plait.server.identity import Keys
from plait.server.layers import Layers
from plait.server.serving import Limits, Serving
from plait.server.turnover import Turnover


def cut_short(*, is_draining: bool) -> list[Message]:
    """What is sent to a client whose body has not come whole, when uvicorn waits for it no longer."""
    names, limits = (MODEL.name,), Limits(8, 1 << 20)
    serving = Serving(ScriptedClient(), byte_text(), names, limits, lambda: 0, lambda: "x", Turnover(lambda: 0.0))
    app = make_app(serving, Layers(Keys(()), (), lambda: "x", lambda: 0.0), "1")
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def work() -> None:
        is_waiting = asyncio.Event()

        async def receive() -> Message:
            is_waiting.set()
            await asyncio.Event().wait()
            raise AssertionError

        task = asyncio.ensure_future(app(scope, receive, send))  # type: ignore[arg-type]
        await is_waiting.wait()
        serving.is_draining = is_draining
        task.cancel()
        await task

    try:
        asyncio.run(work())
    finally:
        serving.close()
    return sent


def test_a_body_that_the_end_of_the_server_cuts_short_is_answered() -> None:
    start, body = cut_short(is_draining=True)
    assert start["status"] == 503
    assert json.loads(body["body"])["error"]["code"] == "stopped"


def test_a_cancelled_request_of_a_server_that_goes_on_stays_cancelled() -> None:
    with pytest.raises(asyncio.CancelledError):
        cut_short(is_draining=False)


def posted(path: str, **body: object) -> list[Message]:
    """What is sent to a client that has sent its body and listens."""
    serving = Serving(
        ScriptedClient(), byte_text(), (MODEL.name,), Limits(8, 1 << 20), lambda: 0, lambda: "x", Turnover(lambda: 0.0)
    )
    app = make_app(serving, Layers(Keys(()), (), lambda: "x", lambda: 0.0), "1")
    scope: Scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    sent: list[Message] = []
    whole = [json.dumps(body).encode()]

    async def receive() -> Message:
        if whole:
            return {"type": "http.request", "body": whole.pop()}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    try:
        asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    finally:
        serving.close()
    assert serving.num_open == 0
    return sent


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "overloaded"}),
        ("/v1/completions", {"prompt": "overloaded", "stream": True}),
        ("/v1/completions", {"prompt": ["fine", "overloaded"]}),
        ("/v1/responses", {"input": "overloaded"}),
        ("/v1/responses", {"input": "overloaded", "stream": True}),
    ],
)
def test_who_would_be_late_is_told_when_to_come_back_before_the_first_byte(path: str, body: dict[str, object]) -> None:
    start, *rest = posted(path, model=MODEL.name, **body)
    assert start["status"] == 429
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("8", "8000")
    assert headers["content-type"] == "application/json"
    error = json.loads(b"".join(message["body"] for message in rest))["error"]
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "overloaded", None)
    assert "would come in 8.5 s and is wanted within 0.5 s" in error["message"]
