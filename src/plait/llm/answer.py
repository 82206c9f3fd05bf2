"""Answers: deltas folded into outputs.

Owns `Answer`, which grows delta by delta and may be read at any time, whole or as what is new since it was read last.
Talks to no engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from plait.core.client import Delta
from plait.core.request import FinishReason
from plait.core.step import TokenLogprob
from plait.llm.outputs import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, RequestOutput
from plait.llm.prompts import Prompt
from plait.llm.sampling_params import SamplingParams
from plait.text.tokenizer import Tokenizer


@dataclass(slots=True, eq=False)
class _Choice:
    """One choice: all of it, and how much of it was read."""

    pieces: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_read_pieces: int = 0
    num_read_tokens: int = 0


class Answer:
    """The answer to one request. What `params` say now holds, whatever becomes of them."""

    def __init__(self, request_id: str, prompt: Prompt, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._has_logprobs = params.logprobs is not None
        self._has_text = params.detokenize
        self._choices = [_Choice() for _ in range(params.n)]
        self._changed: dict[int, None] = {}
        self._num_cached = 0
        # Nothing comes before the first token, so it has none.
        self._scored: list[dict[int, Logprob] | None] | None = None if params.prompt_logprobs is None else [None]
        self._num_read_scored = 0
        self.num_tokens = 0
        """Output tokens of all choices so far."""

    def add(self, delta: Delta) -> None:
        choice = self._choices[delta.choice]
        self._changed[delta.choice] = None
        if self._has_text:
            choice.pieces.append(delta.text)
        choice.tokens += delta.tokens
        self.num_tokens += len(delta.tokens)
        for one in delta.logprobs:
            choice.logprobs.append(self._logprobs(one))
            choice.cumulative += one.logprob
        if self._scored is not None:
            self._scored += [self._logprobs(one) for one in delta.prompt_logprobs]
        choice.finish_reason = delta.finish_reason
        choice.stop_reason = delta.error if delta.finish_reason is FinishReason.ERROR else delta.stop_reason
        # Later choices find the whole prompt cached because the first computed it; that was no saving for the caller.
        if delta.choice == 0:
            self._num_cached = delta.num_cached

    @property
    def is_complete(self) -> bool:
        return all(choice.finish_reason is not None for choice in self._choices)

    def whole(self) -> RequestOutput:
        """Everything so far."""
        self._changed.clear()
        self._num_read_scored = 0
        return self._output([self._completion(index, from_start=True) for index in range(len(self._choices))])

    def news(self) -> RequestOutput:
        """What came since the last look, of the choices that something came for."""
        changed, self._changed = sorted(self._changed), {}
        return self._output([self._completion(index, from_start=False) for index in changed])

    def _output(self, outputs: list[CompletionOutput]) -> RequestOutput:
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt.text,
            prompt_token_ids=list(self._prompt.tokens),
            prompt_logprobs=self._take_scored(),
            outputs=outputs,
            finished=self.is_complete,
            num_cached_tokens=self._num_cached,
        )

    def _take_scored(self) -> list[dict[int, Logprob] | None] | None:
        if self._scored is None:
            return None
        first, self._num_read_scored = self._num_read_scored, len(self._scored)
        return self._scored[first:] or None

    def _completion(self, index: int, *, from_start: bool) -> CompletionOutput:
        choice = self._choices[index]
        pieces, tokens = (0, 0) if from_start else (choice.num_read_pieces, choice.num_read_tokens)
        choice.num_read_pieces, choice.num_read_tokens = len(choice.pieces), len(choice.tokens)
        return CompletionOutput(
            index=index,
            text="".join(choice.pieces[pieces:]),
            token_ids=choice.tokens[tokens:],
            cumulative_logprob=choice.cumulative if self._has_logprobs else None,
            logprobs=choice.logprobs[tokens:] if self._has_logprobs else None,
            finish_reason=None if choice.finish_reason is None else choice.finish_reason.value,
            stop_reason=choice.stop_reason,
        )

    def _logprobs(self, one: TokenLogprob) -> dict[int, Logprob]:
        """The token itself comes first, as in vLLM."""
        ranks = {token: place for place, (token, _) in enumerate(one.top, 1)}
        entries = {one.token: self._logprob(one.token, one.logprob, ranks.get(one.token))}
        for token, logprob in one.top:
            entries.setdefault(token, self._logprob(token, logprob, ranks[token]))
        return entries

    def _logprob(self, token: int, logprob: float, rank: int | None) -> Logprob:
        return Logprob(logprob, rank, self._tokenizer.decode([token], skip_special=False))


def embedding(request_id: str, prompt: Prompt, delta: Delta, *, normalize: bool) -> EmbeddingRequestOutput:
    """`delta` is the last of an embedding request. `normalize`: to length 1."""
    vector = [float(number) for number in delta.pooled or ()]
    if normalize:
        length = math.sqrt(math.fsum(number * number for number in vector))
        vector = [number / length for number in vector] if length else vector
    return EmbeddingRequestOutput(request_id, EmbeddingOutput(vector), list(prompt.tokens), delta.num_cached, True)
