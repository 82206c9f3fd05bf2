"""Serving: lines through an engine, many at a time.

Owns how many lines are in flight and what becomes of each: an answer, its own or that of a line that asks for the same,
a refusal, or the end of the job. Writes nothing to disk itself.
Invariants: a line is in flight from when it is read until it is on the disk, so memory is bounded by `max_in_flight`
lines and those that wait for them, whatever the length of the input; of lines that ask for the same one is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

from plait.api.calls import Call
from plait.api.endpoints import AnyAnswer, answer_to
from plait.api.errors import engine_failure
from plait.batch.beside import beside
from plait.batch.folding import Folds, handed_on, request_key
from plait.batch.ledger import RecordedLine
from plait.batch.lines import BatchLine, LineFault
from plait.batch.ordered import Lines, Wait
from plait.batch.outcomes import LineOutcome, answered, never_run, refused
from plait.batch.planned import says_all
from plait.batch.preparing import Preparer
from plait.batch.progress import OpenLine, Tally
from plait.batch.recorder import Recorder
from plait.core.client import EngineClient, ModelInfo
from plait.core.errors import EngineStopped, RequestError
from plait.core.request import Request, Task
from plait.text.tokenizer import Tokenizer

# The engine's answer to "not now": nothing about the line is wrong, so it must not be recorded as its outcome.
_NOT_NOW = (429, 503)

_UNREAD = "reader_too_slow"
"""Nobody but this process reads a batch's answers, so that it is no trouble of the line either."""

TRIES = 3
"""Of a line that the engine gave up although it goes on."""


@dataclass(frozen=True, slots=True)
class Prepared:
    line: BatchLine
    call: Call
    request: bytes


@dataclass(frozen=True, slots=True)
class Twin:
    """Asks for what a line under way does."""

    line: BatchLine
    request: bytes


Work = Prepared | Twin | LineOutcome | Wait | None


class LineServer:
    """`unix_now` gives Unix time in whole seconds, for the answers. `recorded`: the answer to a request, if a line has
    it already; called in another thread. `is_urgent`, from another thread: whether what is submitted now is to go
    before other batches.
    """

    def __init__(
        self,
        client: EngineClient,
        preparer: Preparer,
        tokenizer: Tokenizer,
        recorder: Recorder,
        tally: Tally,
        unix_now: Callable[[], int],
        recorded: Callable[[bytes], RecordedLine | None],
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._preparer = preparer
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._tally = tally
        self._unix_now = unix_now
        self._recorded = recorded
        self._folds = Folds()
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
                    # Reading, parsing and encoding leave the loop free to hand over answers. Whoever is cancelled waits
                    # for its end: what it reads from is closed afterwards.
                    work = await beside(self._next, lines)
                    if isinstance(work, Prepared | LineOutcome):
                        if isinstance(work, Prepared):
                            self._folds.begins(work.request)
                        group.create_task(self._finish(lines, work)).add_done_callback(ended)
                        continue
                    slots.release()
                    if isinstance(work, Twin):
                        self._folds.joins(work.line, work.request)
                        self._tally.waits(self._folds.num_waiting)
                    if self._must_wait(work):
                        await has_ended.wait()
                    elif work is None and not self._folds.has_again:
                        return
        except BaseExceptionGroup as trouble:
            raise _first(trouble) from None

    def _must_wait(self, work: Work) -> bool:
        """Whether something under way must end before it is of use to ask for more."""
        folds = self._folds
        if work is None:
            # Those that wait for an answer that does not come have to be served themselves.
            return bool(folds.num_waiting) and not folds.has_again
        return work is Wait.FOR_AN_END or folds.is_full

    def _next(self, lines: Lines) -> Work:
        """The next line that is to be served, recorded or told what another one is told; None at the end."""
        line = self._folds.again() or lines.next()
        if line is None or isinstance(line, Wait):
            return line
        if isinstance(line, LineFault):
            return never_run(self._preparer.key(line.number), line)
        try:
            call = self._preparer.prepare(line)
        except RequestError as error:
            return self._refused(line, error)
        request = request_key(call)
        # In this order: who is no longer under way is on the disk, and only here do others begin.
        if self._folds.is_under_way(request):
            return Twin(line, request)
        found = self._recorded(request)
        if found is not None:
            return handed_on(found, line, request, self._preparer.key)
        return Prepared(line, _urgent(call) if self._is_urgent() else call, request)

    async def _finish(self, lines: Lines, work: Prepared | LineOutcome) -> None:
        outcome = work if isinstance(work, LineOutcome) else await self._answer(work)
        if isinstance(work, Prepared) and outcome.failed:
            # Its trouble is its own: the next one that asks for the same is run.
            self._folds.failed(work.request)
        await self._recorder.record(outcome)
        lines.ended(outcome.number, outcome.usage.output_tokens)
        if isinstance(work, Prepared) and not outcome.failed:
            await self._hand_on(outcome, work.request)

    async def _hand_on(self, outcome: LineOutcome, request: bytes) -> None:
        """To those that waited for a line that is on the disk now."""
        waiting = self._folds.ended(request)
        if waiting:
            found = RecordedLine(outcome.number, outcome.output, outcome.usage)
            key_of = self._preparer.key
            outcomes = await beside(lambda: [handed_on(found, one, request, key_of) for one in waiting])
            await self._recorder.record(*outcomes)
            self._tally.waits(self._folds.num_waiting)

    async def _answer(self, work: Prepared) -> LineOutcome:
        call = work.call
        limit = sum(output_limit(request, self._client.model) for request in call.requests)
        num_prompt = sum(len(request.prompt) for request in call.requests)
        open_line = self._tally.opened(limit, num_prompt, is_known=all(map(says_all, call.requests)))
        try:
            for _ in range(TRIES):
                outcome = await self._tried(work, open_line)
                if outcome is not None:
                    return outcome
                self._tally.begins_again(open_line)
        finally:
            self._tally.closed(open_line)
        return self._refused(work.line, engine_failure(f"the engine gave this line up {TRIES} times and went on"))

    async def _tried(self, work: Prepared, open_line: OpenLine) -> LineOutcome | None:
        """None: the engine gave it up. Whether because it closes, who asks again is told."""
        line, call = work.line, work.call
        answer = answer_to(call, self._tokenizer, self._unix_now)
        parts = [self._collect(answer, open_line, place, request) for place, request in enumerate(call.requests)]
        try:
            await _together(parts)
        except RequestError as error:
            if error.status in _NOT_NOW:
                raise EngineStopped(f"the engine takes no more work: {error.message}") from error
            return None if error.code == _UNREAD else self._refused(line, error)
        if answer.is_aborted:
            return None
        if answer.failure is not None:
            return self._refused(line, engine_failure(answer.failure))
        key = self._preparer.key(line.number)
        return replace(answered(key, line.number, line.custom_id, answer.body(), answer.usage()), request=work.request)

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
