"""The order in which a request may be refused, and what each refusal costs the key."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import Request
from starlette.types import Message
from tests.unit.api.byte_text import MODEL, byte_text
from tests.unit.batch.scripted_client import ScriptedClient

from plait.api.calls import Endpoint
from plait.core.clock import SimClock
from plait.core.errors import RequestError
from plait.server.generating import generate
from plait.server.quotas import Account, Quota, Quotas
from plait.server.serving import Limits, Serving
from plait.server.turnover import Turnover
from plait.server.watching import Watching


def test_who_finds_no_room_in_the_server_has_used_nothing_of_the_keys_minute() -> None:
    watching = Watching()
    account = Account(Quota(tokens_per_minute=30), SimClock().now, lambda reason: watching.refused.update([reason]))
    watching.quotas = Quotas({"": account})
    names, limits = (MODEL.name,), Limits(8, 1 << 20)
    serving = Serving(
        ScriptedClient(), byte_text(), names, limits, lambda: 0, lambda: "x", Turnover(lambda: 0.0), watching=watching
    )
    body = json.dumps({"prompt": "a" * 20, "n": 4, "max_tokens": 1}).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def ask() -> None:
        await generate(serving, Endpoint.COMPLETIONS, Request({"type": "http", "headers": []}, receive))

    serving.num_open = 7
    for _ in range(5):
        with pytest.raises(RequestError) as caught:
            asyncio.run(ask())
        assert caught.value.code == "queue_full"
    assert (serving.num_open, dict(watching.refused)) == (7, {"queue_full": 5})
    with account.request() as taken:
        account.take(taken, 30, 30)
    serving.close()
