"""Serving: lines through an engine, many at a time.

Owns how many lines are in flight and what becomes of each: an answer, a refusal, or the end of the job. Writes nothing
to disk itself. Invariant: a line is in flight from when it is read until it is on the disk, so memory is bounded by
`max_in_flight` lines, whatever the length of the input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Literal

from plait.api.calls import Call
from plait.api.endpoints import AnyAnswer, answer_to
from plait.api.errors import engine_failure
from plait.batch.lines import BatchLine, LineFault
from plait.batch.ordered import Lines, Wait
from plait.batch.outcomes import LineOutcome, answered, never_run, refused
from plait.batch.preparing import Preparer
from plait.batch.progress import OpenLine, Tally
from plait.batch.recorder import Recorder
from plait.core.client import EngineClient, ModelInfo
from plait.core.errors import EngineStopped, RequestError
from plait.core.request import Request, Task
from plait.text.tokenizer import Tokenizer

# The engine's answer to "not now": nothing about the line is wrong, so it must not be recorded as its outcome.
_NOT_NOW = (429, 503)


@dataclass(frozen=True, slots=True)
class Prepared:
    line: BatchLine
    call: Call


class LineServer:
    """`unix_now` gives Unix time in whole seconds, for the answers; `is_urgent`, from another thread, whether what is
    submitted now is to go before other batches.
    """

    def __init__(
        self,
        client: EngineClient,
        preparer: Preparer,
        tokenizer: Tokenizer,
        recorder: Recorder,
        tally: Tally,
        unix_now: Callable[[], int],
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._preparer = preparer
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._tally = tally
        self._unix_now = unix_now
        self._is_urgent = is_urgent

    async def serve(self, lines: Lines, max_in_flight: int) -> None:
        """Serve every line, in the order in which they come; return when all are on the disk."""
        slots = asyncio.Semaphore(max_in_flight)
        has_ended = asyncio.Event()

        def ended(task: asyncio.Task[None]) -> None:
            slots.release()
            has_ended.set()

        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await slots.acquire()
                    has_ended.clear()
                    # Reading, parsing and encoding leave the loop free to hand over answers.
                    work = await asyncio.to_thread(self._next, lines)
                    if work is None:
                        return
                    if work is Wait.FOR_AN_END:
                        slots.release()
                        await has_ended.wait()
                        continue
                    group.create_task(self._finish(lines, work)).add_done_callback(ended)
        except BaseExceptionGroup as trouble:
            raise _first(trouble) from None

    def _next(self, lines: Lines) -> Prepared | LineOutcome | Literal[Wait.FOR_AN_END] | None:
        """The next line that is to be served or recorded; None at the end."""
        line = lines.next()
        if line is None or line is Wait.FOR_AN_END:
            return line
        if isinstance(line, LineFault):
            return never_run(self._preparer.key(line.number), line)
        try:
            call = self._preparer.prepare(line)
            return Prepared(line, _urgent(call) if self._is_urgent() else call)
        except RequestError as error:
            return self._refused(line, error)

    async def _finish(self, lines: Lines, work: Prepared | LineOutcome) -> None:
        outcome = work if isinstance(work, LineOutcome) else await self._answer(work)
        await self._recorder.record(outcome)
        lines.ended(outcome.number, outcome.usage.output_tokens)

    async def _answer(self, work: Prepared) -> LineOutcome:
        line, call = work.line, work.call
        answer = answer_to(call, self._tokenizer, self._unix_now)
        limit = sum(output_limit(request, self._client.model) for request in call.requests)
        num_prompt = sum(len(request.prompt) for request in call.requests)
        open_line = self._tally.opened(limit, num_prompt)
        parts = [self._collect(answer, open_line, place, request) for place, request in enumerate(call.requests)]
        try:
            await _together(parts)
        except RequestError as error:
            if error.status in _NOT_NOW:
                raise EngineStopped(f"the engine takes no more work: {error.message}") from error
            return self._refused(line, error)
        finally:
            self._tally.closed(open_line)
        if answer.is_aborted:
            raise EngineStopped(f"the engine closed before line {line.number} was answered")
        if answer.failure is not None:
            return self._refused(line, engine_failure(answer.failure))
        return answered(self._preparer.key(line.number), line.number, line.custom_id, answer.body(), answer.usage())

    async def _collect(self, answer: AnyAnswer, open_line: OpenLine, place: int, request: Request) -> None:
        is_whole = is_begun = False
        try:
            async for delta in self._client.submit(request):
                answer.add(place, delta)
                computed = 0 if is_begun else delta.num_prompt - delta.num_cached
                is_begun = True
                self._tally.emitted(open_line, len(delta.tokens), computed)
            is_whole = True
        finally:
            if not is_whole:
                await self._client.abort(request.id)

    def _refused(self, line: BatchLine, error: RequestError) -> LineOutcome:
        return refused(self._preparer.key(line.number), line.number, line.custom_id, error)


def _urgent(call: Call) -> Call:
    return replace(call, requests=tuple(replace(one, is_urgent=True) for one in call.requests))


def output_limit(request: Request, model: ModelInfo) -> int:
    """Output tokens that a request may have, all its choices together."""
    if request.task is Task.EMBED:
        return 0
    room = model.max_model_tokens - len(request.prompt)
    return request.n * (room if request.sampling.max_tokens is None else request.sampling.max_tokens)


async def _together(parts: list[Coroutine[None, None, None]]) -> None:
    """Run all parts at once. The first error ends the others and is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
    except BaseExceptionGroup as trouble:
        raise _first(trouble) from None


def _first(trouble: BaseExceptionGroup[BaseException]) -> BaseException:
    first = trouble.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
