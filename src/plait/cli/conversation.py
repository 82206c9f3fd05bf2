"""Conversation: what was said so far, and how one more message is answered.

Owns the turns, the check that they fit the model, and the request. Prints nothing itself.
Invariant: a turn is kept only with an answer, which may be a part of one; nothing is ever dropped on its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from plait.api.bodies import JsonObject
from plait.build import LocalEngine
from plait.core.client import Delta
from plait.core.errors import RequestError
from plait.core.ids import RequestId
from plait.core.request import FinishReason, Request
from plait.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Turn:
    message: str
    answer: str


@dataclass(slots=True)
class Answering:
    """An answer while it comes, and what there is of it when it is stopped."""

    began_s: float
    pieces: list[str] = field(default_factory=list)
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    first_s: float | None = None
    last_s: float | None = None
    finish: FinishReason | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def take(self, delta: Delta, now_s: float) -> None:
        self.pieces.append(delta.text)
        self.num_prompt, self.num_cached = delta.num_prompt, delta.num_cached
        self.num_output += len(delta.tokens)
        if delta.tokens:
            self.first_s = now_s if self.first_s is None else self.first_s
            self.last_s = now_s
        self.finish, self.error = delta.finish_reason, delta.error

    def sentence(self) -> str:
        """How it went, in numbers."""
        if self.first_s is None or self.last_s is None:
            return "no token came"
        said = (
            f"{self.num_prompt:,} prompt tokens, {self.num_cached:,} of them from the cache, first token after "
            f"{self.first_s - self.began_s:.2f} s; {self.num_output:,} output tokens"
        )
        if self.num_output < 2 or self.last_s <= self.first_s:
            return said
        return f"{said}, {(self.num_output - 1) / (self.last_s - self.first_s):.1f} a second"


class Conversation:
    """`file_text` goes in front of the first message, also after `clear`."""

    def __init__(self, engine: LocalEngine, sampling: SamplingParams, system: str | None, file_text: str = "") -> None:
        self.system = system
        self.file_text = file_text
        self.turns: list[Turn] = []
        self._engine = engine
        self._sampling = sampling
        self._num_asked = 0

    @property
    def limit(self) -> int:
        """Tokens of prompt and answer together at most."""
        return self._engine.sizes.max_model_tokens

    def messages(self, message: str | None = None) -> list[JsonObject]:
        """What was said, and `message` behind it."""
        found: list[JsonObject] = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns:
            found += [{"role": "user", "content": turn.message}, {"role": "assistant", "content": turn.answer}]
        return found if message is None else [*found, {"role": "user", "content": message}]

    def with_file(self, message: str) -> str:
        """The message as it is sent: the file stands in front of the first one."""
        if self.turns or not self.file_text:
            return message
        return f"{self.file_text}\n\n{message}".rstrip()

    def tokens(self, message: str) -> list[int]:
        """The prompt; `RequestError` with tokens, limit and ways out if it leaves no room for an answer."""
        ids = self._engine.text.encode_chat(self.messages(message), add_generation_prompt=True, variables={})
        if len(ids) >= self.limit:
            raise RequestError(
                f"with this message the conversation has {len(ids):,} tokens, and the model holds {self.limit:,} "
                f"together with the answer; {self._way_out()}"
            )
        return ids

    async def answer(self, tokens: list[int], into: Answering, write: Callable[[str], None]) -> None:
        """Fill `into` as the answer comes. Cancelled, it takes the request out of the engine."""
        left = self.limit - len(tokens)
        self._num_asked += 1
        sampling = replace(self._sampling, max_tokens=min(self._sampling.max_tokens or left, left))
        request = Request(RequestId(f"chat-{self._num_asked}"), tuple(tokens), sampling)
        async with aclosing(self._engine.client.submit(request)) as deltas:
            async for delta in deltas:
                into.take(delta, time.monotonic())
                write(delta.text)

    def _way_out(self) -> str:
        if not self.turns:
            more = self._engine.model.config.max_positions > self.limit
            return f"send less{' or raise --max-model-len' if more else ''}"
        return "shorten it, let /forget drop the oldest exchange, or /clear all of them"
