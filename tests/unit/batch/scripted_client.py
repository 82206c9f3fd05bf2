"""An engine client that follows a script: it shouts the end of each prompt back, one token per delta.

Implements `EngineClient` in full, so the type checker holds it to the protocol. What it does to a request is decided by
words in the prompt: `refuse`, `fail`, `abort`, `busy` and `stopped`; and, the first time it is asked, `once` (gives it
up), `unread` (says that nobody reads) and `closing` (gives it up and takes nothing more).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tests.unit.api.byte_text import END, MODEL

from plait.core.client import Delta, EngineClient, Health, ModelInfo
from plait.core.errors import OVERLOADED, EngineStopped, RequestError
from plait.core.ids import RequestId
from plait.core.request import FinishReason, Request
from plait.core.step import TokenLogprob

ECHO_TOKENS = 4


def words_of(request: Request) -> str:
    """The text of a prompt, control tokens left out."""
    return bytes(token for token in request.prompt if token < 256).decode()


def echo_of(request: Request) -> str:
    """What the client answers: the last characters of the prompt in capitals."""
    return words_of(request)[-ECHO_TOKENS:].upper()


@dataclass(eq=False)
class ScriptedClient:
    """`pause` is awaited before each delta; `submitted` lists the requests in order, `aborted` their ids."""

    pause: Callable[[Request], asyncio.Future[None] | None] = lambda request: None
    on_submit: Callable[[Request], None] = lambda request: None
    model_info: ModelInfo = MODEL
    submitted: list[Request] = field(default_factory=list)
    aborted: list[RequestId] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    @property
    def model(self) -> ModelInfo:
        return self.model_info

    async def submit(self, request: Request) -> AsyncIterator[Delta]:
        self.submitted.append(request)
        self.on_submit(request)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            self._raise_if_told(request, words_of(request))
            for choice in range(request.n):
                async for delta in self._choice(request, choice):
                    yield delta
        finally:
            self.num_open -= 1

    async def abort(self, request: RequestId) -> None:
        self.aborted.append(request)

    def health(self) -> Health:
        return Health(True, 0, self.num_open)

    def _is_first(self, request: Request) -> bool:
        return sum(one.id == request.id for one in self.submitted) == 1

    def _raise_if_told(self, request: Request, words: str) -> None:
        if "refuse" in words:
            raise RequestError(
                "the request needs memory for 99 tokens", param="max_tokens", code="context_length_exceeded"
            )
        if "unread" in words and self._is_first(request):
            raise RequestError("the answer was not read", status=408, code="reader_too_slow")
        if "closing" in words and not self._is_first(request):
            raise RequestError("the engine is closing", status=503, code="closing")
        if "busy" in words:
            raise RequestError("the queue is full", code="queue_full", status=429)
        if "overloaded" in words:
            message = "too much is under way: the first token would come in 8.5 s and is wanted within 0.5 s"
            raise RequestError(message, status=429, kind="rate_limit_error", code=OVERLOADED, retry_after_s=8.0)
        if "stopped" in words:
            raise EngineStopped("the engine stopped on a fault of its own")

    async def _choice(self, request: Request, choice: int) -> AsyncIterator[Delta]:
        words = words_of(request)
        ending = {"fail": FinishReason.ERROR, "abort": FinishReason.ABORT}
        if self._is_first(request):
            ending |= {"once": FinishReason.ABORT, "closing": FinishReason.ABORT}
        bad = next((reason for word, reason in ending.items() if word in words), None)
        text = "" if bad else echo_of(request)
        for letter in text:
            await asyncio.sleep(0)
            if (wait := self.pause(request)) is not None:
                await wait
            yield self._delta(request, choice, letter, tuple(letter.encode()), None)
        yield self._delta(request, choice, "", () if bad else (END,), bad or FinishReason.STOP)

    def _delta(
        self, request: Request, choice: int, text: str, tokens: tuple[int, ...], finish: FinishReason | None
    ) -> Delta:
        wants_logprobs = request.sampling.logprobs is not None
        return Delta(
            choice=choice,
            text=text,
            tokens=tokens,
            logprobs=tuple(TokenLogprob(token, -0.5) for token in tokens) if wants_logprobs else (),
            finish_reason=finish,
            num_prompt=len(request.prompt),
            num_cached=2,
            seed=request.sampling.seed or 0,
            error="step 7 failed" if finish is FinishReason.ERROR else None,
        )


def checked_by_the_type_checker(client: ScriptedClient) -> EngineClient:
    return client
