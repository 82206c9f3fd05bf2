"""LLM: a model in this process, for programs that wait for answers.

Owns the public class and nothing that happens behind it: prompts, requests, answers and the bar are in the files
beside it.
Invariant: results are in the order of the prompts; whatever is wrong with an argument is said before anything runs.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType

from plait.core.client import Delta
from plait.core.errors import InvariantError, PlaitError
from plait.core.request import FinishReason, Request, ServiceClass
from plait.llm.answer import Answer, embedding
from plait.llm.conversations import Conversation, Rendering, read_conversations
from plait.llm.loading import load_engine
from plait.llm.options import OptionValue
from plait.llm.outputs import EmbeddingRequestOutput, RequestOutput
from plait.llm.progress import Progress, UseTqdm
from plait.llm.prompts import Prompt, PromptType, read_prompts
from plait.llm.requests import embedding_request, generation, params_of, priorities_of, with_form
from plait.llm.sampling_params import SamplingParams
from plait.llm.service import Service
from plait.llm.serving import serve_all
from plait.llm.tokenizer import LLMTokenizer

LEAST_IN_FLIGHT = 128
"""Requests handed to the engine at once at least: what a scheduler can choose from. More wait their turn."""


class LLM:
    """A language model.

    `model` is a file, or a name of the catalogue. Every option of the engine is a keyword (`max_model_len`,
    `max_num_seqs`, `kv_cache_memory="1GiB"`, ...), and so are vLLM's names where they mean the same. Threads may share
    one.
    """

    def __init__(self, model: str | Path = "smollm2", **options: OptionValue) -> None:
        self._service = Service(load_engine(model, options))
        # Whoever does not close: when this object goes, or the interpreter.
        self._finalizer = weakref.finalize(self, self._service.close)
        self._numbers = itertools.count()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        info = self._service.engine.client.model
        return f"LLM(model={info.name!r}, max_model_len={info.max_model_tokens})"

    def close(self) -> None:
        """Abort what is running, and free threads and memory. Again: nothing more happens."""
        self._finalizer()

    def shutdown(self) -> None:
        """`close` by its other name."""
        self.close()

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer together at most."""
        return self._service.engine.client.model.max_model_tokens

    def get_tokenizer(self) -> LLMTokenizer:
        return LLMTokenizer(self._service.engine.text)

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams()

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt. `sampling_params`: one for all, or one for each; `priority`: lower runs sooner."""
        read = read_prompts(prompts, self._service.engine.text)
        return self._generate(read, sampling_params, use_tqdm, priority, "prompt")

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several."""
        how = Rendering(add_generation_prompt, continue_final_message, chat_template, tools, chat_template_kwargs)
        read = read_conversations(messages, self._service.engine.text, how)
        return self._generate(read, sampling_params, use_tqdm, None, "conversation")

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        pooling: str = "last",
        normalize: bool = True,
        use_tqdm: UseTqdm = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for every prompt: its last token's hidden state behind the final norm, or the mean of all (`pooling`
        "mean"), brought to length 1 unless `normalize` is False.
        """
        read = read_prompts(prompts, self._service.engine.text)
        model = self._service.engine.client.model
        requests = [
            embedding_request(str(next(self._numbers)), prompt, pooling, model, ServiceClass.BATCH, f"prompt {place}")
            for place, prompt in enumerate(read)
        ]
        last: list[Delta | None] = [None] * len(requests)

        def take(place: int, delta: Delta) -> None:
            if delta.finish_reason is FinishReason.ERROR:
                raise PlaitError(f"prompt {place} cannot be embedded: {delta.error}")
            last[place] = delta

        with closing(Progress(use_tqdm, len(requests), "Processed prompts")) as progress:
            self._serve(requests, take, lambda place: progress.finished(len(read[place].tokens), 0))
        return [
            embedding(request.id, prompt, _there(delta), normalize=normalize)
            for request, prompt, delta in zip(requests, read, last, strict=True)
        ]

    def _generate(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: UseTqdm,
        priority: Sequence[int] | None,
        word: str,
    ) -> list[RequestOutput]:
        params = params_of(sampling_params, len(prompts))
        priorities = priorities_of(priority, len(prompts))
        model = self._service.engine.client.model
        requests = [
            with_form(
                generation(str(next(self._numbers)), prompt, one, rank, model, ServiceClass.BATCH, f"{word} {place}"),
                one,
                self._service.engine.text,
                f"{word} {place}",
            )
            for place, (prompt, one, rank) in enumerate(zip(prompts, params, priorities, strict=True))
        ]
        tokenizer = self._service.engine.text.tokenizer
        answers = [
            Answer(request.id, prompt, one, tokenizer)
            for request, prompt, one in zip(requests, prompts, params, strict=True)
        ]

        def finished(place: int) -> None:
            progress.finished(len(prompts[place].tokens), answers[place].num_tokens)

        with closing(Progress(use_tqdm, len(requests), "Processed prompts")) as progress:
            self._serve(requests, lambda place, delta: answers[place].add(delta), finished)
        return [answer.whole() for answer in answers]

    def _serve(
        self, requests: Sequence[Request], deltas: Callable[[int, Delta], None], finished: Callable[[int], None]
    ) -> None:
        engine = self._service.engine
        at_once = max(LEAST_IN_FLIGHT, 2 * engine.executor.max_rows)
        self._service.run(serve_all(engine.client, requests, deltas, finished, at_once))


def _there(delta: Delta | None) -> Delta:
    if delta is None:
        raise InvariantError("a request was served without an answer")
    return delta
