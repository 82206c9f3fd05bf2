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
from plait.api.errors import engine_failure
from plait.api.known import refuse_unknown
from plait.core.client import Delta
from plait.core.request import FinishReason
from plait.core.request import Request as EngineRequest
from plait.server.events import EventStream, event
from plait.server.identity import tenant_of
from plait.server.incoming import read_json, while_there
from plait.server.replies import Json, one_line
from plait.server.serving import Serving, unavailable
from plait.server.watching import Watch

MOST_NUMBERS = 1000
"""An answer of more is put into JSON beside the event loop: a number with its token takes some 5 us."""
MOST_SCORED = 100
"""Tokens of a prompt with their alternatives, as many as may be asked for."""


async def generate(serving: Serving, endpoint: Endpoint, request: Request) -> Response:
    serving.check_open()
    with ExitStack() as room:
        watch = room.enter_context(serving.watching.of(endpoint, request))
        body = await read_json(request, serving.limits.max_body_bytes, serving.beside_loop)
        call_id = f"{ID_PREFIXES[endpoint]}-{serving.new_id()}"
        with serving.preparing():
            call = await serving.beside_loop(_prepare, serving, endpoint, call_id, body)
        call = for_tenant(call, tenant_of(request))
        watch.asked(call)
        room.enter_context(serving.place(call.num_choices))
        watch.let_in(call, serving.client.model.max_model_tokens)
        if call.generation.stream:
            return EventStream(_chunks(serving, call, watch), room.pop_all())
        return await while_there(request.receive, _whole(serving, call, watch))


def _prepare(serving: Serving, endpoint: Endpoint, call_id: str, body: JsonObject) -> Call:
    """Check, render and encode; not for an event loop."""
    if serving.strict_fields:
        refuse_unknown(endpoint, body)
    parsed = parse_body(endpoint, body)
    check_model(model_of(parsed), serving.names)
    return call_of(parsed, call_id, serving.text, serving.client.model)


async def _whole(serving: Serving, call: Call, watch: Watch) -> Response:
    answer = answer_to(call, serving.text.tokenizer, serving.unix_now)
    numbers = 0
    async with aclosing(deltas_of(serving, call, watch)) as deltas:
        async for prompt, delta in deltas:
            answer.add(prompt, delta)
            check_end(delta)
            numbers += _num_numbers(delta)
    if numbers <= MOST_NUMBERS:
        return Json(answer.body())
    raw = await serving.beside_loop(lambda: one_line(answer.body()))
    return Response(raw, media_type=Json.media_type)


def _num_numbers(delta: Delta) -> int:
    """Log-probabilities and numbers of vectors: they make an answer long, and its JSON slow."""
    scored = (*delta.logprobs, *delta.prompt_logprobs)
    return sum([1 + len(one.top) for one in scored]) + len(delta.pooled or ())


async def _chunks(serving: Serving, call: Call, watch: Watch) -> AsyncGenerator[bytes, None]:
    """Events of a stream, all that a delta makes of them at once."""
    chunks = Chunks(call, serving.text.tokenizer, serving.unix_now())
    async with aclosing(deltas_of(serving, call, watch)) as deltas:
        async for prompt, delta in deltas:
            check_end(delta)
            # With the last of a prompt's scores all of them are told at once.
            is_long = delta.prompt_logprobs and len(call.requests[prompt].prompt) > MOST_SCORED
            if made := await serving.beside_loop(chunks.add, prompt, delta) if is_long else chunks.add(prompt, delta):
                yield b"".join([event(chunk) for chunk in made])
    if made := chunks.end():
        yield b"".join([event(chunk) for chunk in made])


def check_end(delta: Delta) -> None:
    """`RequestError` for an answer that will never be whole."""
    if delta.finish_reason is FinishReason.ERROR:
        raise engine_failure(delta.error or "no reason given")
    if delta.finish_reason is FinishReason.ABORT:
        raise unavailable("the server stopped before this answer was finished; send the request again", "aborted")


async def deltas_of(serving: Serving, call: Call, watch: Watch) -> AsyncGenerator[tuple[int, Delta], None]:
    """What the engine answers to all prompts of a call, as it comes. Closing this aborts what is not finished."""
    if len(call.requests) == 1:
        async with aclosing(serving.client.submit(call.requests[0])) as answers:
            async for delta in answers:
                watch.came(0, delta)
                yield 0, delta
        return
    # Short, so that what nobody reads waits where it is counted.
    queue: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue(maxsize=len(call.requests))

    async def follow(place: int, request: EngineRequest) -> None:
        async with aclosing(serving.client.submit(request)) as answers:
            async for delta in answers:
                watch.came(place, delta)
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
