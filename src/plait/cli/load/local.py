"""Local: the engine in this process, as a target: no HTTP, text made on the way in and out as a server makes it.

Owns the requests' ids and the clock by which pieces are timed, which is the client's, as for a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing

from plait.build import LocalEngine
from plait.cli.load.asks import Answer, Ask, deaf
from plait.core.errors import PlaitError
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams


class Local:
    """Serves one event loop, as the engine's client does."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._num_asked = 0

    async def answer(self, ask: Ask, due_s: float, heard: Callable[[], None] = deaf) -> Answer:
        self._num_asked += 1
        number = self._num_asked
        piece_s: list[float] = []
        num_output = num_cached = 0
        error = ""
        prompt: tuple[int, ...] = ()
        try:
            prompt = self._encode(ask)
            sampling = SamplingParams(temperature=0.0, max_tokens=ask.output_tokens, ignore_eos=True)
            request = Request(RequestId(f"load-{number}"), prompt, sampling)
            async with aclosing(self._engine.client.submit(request)) as deltas:
                async for delta in deltas:
                    num_output += len(delta.tokens)
                    num_cached = max(num_cached, delta.num_cached)
                    error = delta.error or error
                    if delta.tokens:
                        piece_s.append(time.perf_counter())
                        heard()
        except PlaitError as trouble:
            error = str(trouble)
        return Answer(
            due_s=due_s,
            end_s=time.perf_counter(),
            piece_s=tuple(piece_s),
            wanted_output=ask.output_tokens,
            num_output=num_output,
            num_prompt=len(prompt),
            num_cached=num_cached,
            is_counted=True,
            error=error,
        )

    def _encode(self, ask: Ask) -> tuple[int, ...]:
        if ask.messages:
            return tuple(self._engine.text.encode_chat(ask.messages, add_generation_prompt=True, variables={}))
        return tuple(self._engine.text.encode_text(ask.prompt, True))
