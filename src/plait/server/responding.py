"""Responding: /v1/responses, stateless.

Owns the way of such a body to the engine and back. Nothing is kept: a response can be had once, as it is made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing

from starlette.requests import Request
from starlette.responses import Response

from plait.api.bodies import JsonObject
from plait.api.calls import Call, Endpoint, check_model, for_tenant
from plait.api.known import refuse_unknown
from plait.api.response_events import ResponseEvents
from plait.api.responses import parse_response
from plait.core.errors import EngineStopped, RequestError
from plait.server.events import EventStream, Told, event
from plait.server.generating import check_end, deltas_of
from plait.server.identity import tenant_of
from plait.server.incoming import read_json, while_there
from plait.server.replies import Json, as_request_error, one_line
from plait.server.serving import Serving
from plait.server.watching import Watch


async def respond(serving: Serving, request: Request) -> Response:
    serving.check_open()
    with ExitStack() as room:
        watch = room.enter_context(serving.watching.of(Endpoint.RESPONSES, request))
        body = await read_json(request, serving.limits.max_body_bytes, serving.beside_loop)
        with serving.preparing():
            call = await serving.beside_loop(_prepare, serving, f"resp_{serving.new_id()}", body)
        call = for_tenant(call, tenant_of(request))
        watch.asked(call)
        events = ResponseEvents(call, serving.text.tokenizer, serving.unix_now)
        room.enter_context(serving.place(1))
        watch.let_in(call, serving.client.model.max_model_tokens)
        if call.generation.stream:
            return EventStream(_stream(serving, call, events, watch), room.pop_all(), has_named_events=True)
        return await while_there(request.receive, _whole(serving, call, events, watch))


async def not_kept(serving: Serving, request: Request) -> Response:
    raise RequestError(
        "responses are not kept here: each is given once, to whoever asked for it",
        status=404,
        kind="not_found_error",
        code="not_found",
    )


def _prepare(serving: Serving, call_id: str, body: JsonObject) -> Call:
    if serving.strict_fields:
        refuse_unknown(Endpoint.RESPONSES, body)
    asked = parse_response(body)
    check_model(asked.chat.generation.model, serving.names)
    return asked.call(call_id, serving.text, serving.client.model)


async def _whole(serving: Serving, call: Call, events: ResponseEvents, watch: Watch) -> Response:
    async with aclosing(deltas_of(serving, call, watch)) as deltas:
        async for _, delta in deltas:
            check_end(delta)
            events.add(delta)
    return Json(events.response())


async def _stream(serving: Serving, call: Call, events: ResponseEvents, watch: Watch) -> AsyncGenerator[bytes, None]:
    begun = False
    try:
        async with aclosing(deltas_of(serving, call, watch)) as deltas:
            async for _, delta in deltas:
                check_end(delta)
                made = events.add(delta) if begun else [*events.start(), *events.add(delta)]
                begun = True
                if made:
                    yield _named(made)
    except (RequestError, EngineStopped) as error:
        if not begun:
            raise
        yield _named(events.failed(as_request_error(error)))
        raise Told(error) from error


def _named(events: Sequence[JsonObject]) -> bytes:
    """Events on the wire, each under its type."""
    return b"".join([event(one_line(one), str(one["type"])) for one in events])
