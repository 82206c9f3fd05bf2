"""AsyncLLM: a model in this process, for programs with an event loop.

Owns the public class; the engine does the rest. Requests run side by side, as many as are asked for.
Invariant: an iterator that is closed early aborts its request.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType

from plait.core.errors import PlaitError, UsageError
from plait.core.ids import RequestId
from plait.core.request import FinishReason, ServiceClass
from plait.llm.answer import Answer, embedding
from plait.llm.loading import load_engine
from plait.llm.options import OptionValue
from plait.llm.outputs import EmbeddingRequestOutput, RequestOutput
from plait.llm.prompts import PromptType, read_prompt
from plait.llm.requests import embedding_request, generation, with_form
from plait.llm.sampling_params import RequestOutputKind, SamplingParams
from plait.llm.tokenizer import LLMTokenizer


class EngineArgs:
    """The arguments of an engine, kept until one is made, as in vLLM."""

    def __init__(self, model: str | Path = "smollm2", **options: OptionValue) -> None:
        self.model = model
        self.options = options

    def __repr__(self) -> str:
        said = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}(model={str(self.model)!r}{said})"


class AsyncEngineArgs(EngineArgs):
    """`EngineArgs` by the name that asynchronous programs use."""


class AsyncLLM:
    """A language model for one event loop: the one that runs at its first call. Options are those of `LLM`."""

    def __init__(self, model: str | Path = "smollm2", **options: OptionValue) -> None:
        self._engine = load_engine(model, options)
        self._finalizer = weakref.finalize(self, self._engine.close)
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        return cls(engine_args.model, **engine_args.options)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.shutdown)

    def __repr__(self) -> str:
        info = self._engine.client.model
        return f"AsyncLLM(model={info.name!r}, max_model_len={info.max_model_tokens})"

    def shutdown(self) -> None:
        """Abort what is running, and free threads and memory. Again: nothing more happens."""
        self._finalizer()

    def close(self) -> None:
        self.shutdown()

    async def get_tokenizer(self) -> LLMTokenizer:
        return LLMTokenizer(self._engine.text)

    async def generate(
        self, prompt: PromptType, sampling_params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[RequestOutput, None]:
        """Items as `sampling_params.output_kind` says, the last one `finished`. A request id must not be in use."""
        self._check_loop()
        # Text may be long, and the loop has others to serve.
        read = await asyncio.to_thread(read_prompt, prompt, self._engine.text, "the prompt")
        request = generation(
            request_id, read, sampling_params, priority, self._engine.client.model, ServiceClass.ONLINE, "the prompt"
        )
        request = await asyncio.to_thread(with_form, request, sampling_params, self._engine.text, "the prompt")
        kind = sampling_params.output_kind
        answer = Answer(request_id, read, sampling_params, self._engine.text.tokenizer)
        async with aclosing(self._engine.client.submit(request)) as deltas:
            async for delta in deltas:
                answer.add(delta)
                if answer.is_complete or kind is not RequestOutputKind.FINAL_ONLY:
                    yield answer.news() if kind is RequestOutputKind.DELTA else answer.whole()

    async def embed(
        self, prompt: PromptType, request_id: str, *, pooling: str = "last", normalize: bool = True
    ) -> EmbeddingRequestOutput:
        """As `LLM.embed`, for one prompt."""
        self._check_loop()
        read = await asyncio.to_thread(read_prompt, prompt, self._engine.text, "the prompt")
        model = self._engine.client.model
        request = embedding_request(request_id, read, pooling, model, ServiceClass.ONLINE, "the prompt")
        async with aclosing(self._engine.client.submit(request)) as deltas:
            (last,) = [delta async for delta in deltas]
        if last.finish_reason is not FinishReason.STOP:
            raise PlaitError(f"the prompt was not embedded: {last.error or 'it was aborted'}")
        return embedding(request_id, read, last, normalize=normalize)

    async def abort(self, request_id: str) -> None:
        """End a request; its iterator's last item has the finish reason "abort". Unknown ids are ignored."""
        await self._engine.client.abort(RequestId(request_id))

    async def check_health(self) -> None:
        """Raise `PlaitError` if nothing can be answered any more."""
        health = self._engine.client.health()
        if not health.ok:
            raise PlaitError(f"the engine does not serve: {health.reason}")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise UsageError("this AsyncLLM belongs to another event loop; make one inside this loop, or use LLM")
