"""Generating: chats, completions and embeddings, in one piece or as a stream.

Owns the way of a body to the engine and of the deltas back. What a body means is the api room's business, what a stream
looks like on the wire that of `events`.
Invariant: when a client leaves, its requests are aborted before anything else is done for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

from starlette.requests import Request
from starlette.responses import Response

from plait.api.bodies import JsonObject
from plait.api.calls import Call, Endpoint, check_model, for_tenant
from plait.api.chunks import Chunks
from plait.api.endpoints import ID_PREFIXES, answer_to, call_of, model_of, parse_body
from plait.api.errors import engine_failure, error_body
from plait.api.known import refuse_unknown
from plait.core.client import Delta
from plait.core.errors import EngineStopped, RequestError
from plait.core.request import FinishReason
from plait.core.request import Request as EngineRequest
from plait.server.events import EventStream
from plait.server.identity import tenant_of
from plait.server.incoming import read_json, while_there
from plait.server.replies import Json, as_request_error
from plait.server.serving import Serving, unavailable


async def generate(serving: Serving, endpoint: Endpoint, request: Request) -> Response:
    serving.check_open()
    body = await read_json(request, serving.limits.max_body_bytes)
    call_id = f"{ID_PREFIXES[endpoint]}-{serving.new_id()}"
    with serving.preparing():
        call = await serving.beside_loop(_prepare, serving, endpoint, call_id, body)
    call = for_tenant(call, tenant_of(request))
    if not call.generation.stream:
        with serving.place(call.num_choices):
            return await while_there(request.receive, _whole(serving, call))
    room = ExitStack()
    room.enter_context(serving.place(call.num_choices))
    return EventStream(_chunks(serving, call), room)


def _prepare(serving: Serving, endpoint: Endpoint, call_id: str, body: JsonObject) -> Call:
    """Check, render and encode; not for an event loop."""
    if serving.strict_fields:
        refuse_unknown(endpoint, body)
    parsed = parse_body(endpoint, body)
    check_model(model_of(parsed), serving.names)
    return call_of(parsed, call_id, serving.text, serving.client.model)


async def _whole(serving: Serving, call: Call) -> Response:
    answer = answer_to(call, serving.text.tokenizer, serving.unix_now)
    async with aclosing(deltas_of(serving, call)) as deltas:
        async for prompt, delta in deltas:
            answer.add(prompt, delta)
            check_end(delta)
    return Json(answer.body())


async def _chunks(serving: Serving, call: Call) -> AsyncGenerator[JsonObject, None]:
    """Stream objects; trouble behind the first of them is the last object, an error's."""
    chunks = Chunks(call, serving.text.tokenizer, serving.unix_now())
    begun = False
    try:
        async with aclosing(deltas_of(serving, call)) as deltas:
            async for prompt, delta in deltas:
                check_end(delta)
                for chunk in chunks.add(prompt, delta):
                    begun = True
                    yield chunk
        for chunk in chunks.end():
            yield chunk
    except (RequestError, EngineStopped) as error:
        if not begun:
            raise
        yield error_body(as_request_error(error))


def check_end(delta: Delta) -> None:
    """`RequestError` for an answer that will never be whole."""
    if delta.finish_reason is FinishReason.ERROR:
        raise engine_failure(delta.error or "no reason given")
    if delta.finish_reason is FinishReason.ABORT:
        raise unavailable("the server stopped before this answer was finished; send the request again", "aborted")


async def deltas_of(serving: Serving, call: Call) -> AsyncGenerator[tuple[int, Delta], None]:
    """What the engine answers to all prompts of a call, as it comes. Closing this aborts what is not finished."""
    if len(call.requests) == 1:
        async with aclosing(serving.client.submit(call.requests[0])) as answers:
            async for delta in answers:
                yield 0, delta
        return
    # Short, so that what nobody reads waits where it is counted.
    queue: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue(maxsize=len(call.requests))

    async def follow(place: int, request: EngineRequest) -> None:
        async with aclosing(serving.client.submit(request)) as answers:
            async for delta in answers:
                await queue.put((place, delta))

    async def follow_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for place, request in enumerate(call.requests):
                    group.create_task(follow(place, request))
        except BaseExceptionGroup:
            await queue.put(None)
            raise
        await queue.put(None)

    everyone = asyncio.ensure_future(follow_all())
    try:
        while (item := await queue.get()) is not None:
            yield item
        await _raise_first(everyone)
    finally:
        everyone.cancel()
        await asyncio.gather(everyone, return_exceptions=True)


async def _raise_first(everyone: asyncio.Future[None]) -> None:
    """The first trouble of several prompts, without the group around it."""
    try:
        await everyone
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
