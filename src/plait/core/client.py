"""Engine client: how everything above the engine talks to it.

Owns `Delta`, the unit of an answer, and the `EngineClient` protocol. A server, a batch runner and a test see the
engine only through this.
Invariant: the deltas of one choice, joined, are its whole text and tokens; exactly one of them carries
`finish_reason`, the last.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from plait.core.ids import RequestId
from plait.core.request import FinishReason, Request
from plait.core.step import TokenLogprob


class Delta(NamedTuple):
    """New output of one choice of a request.

    `text` never ends inside a character nor inside something that may become a stop string, so it may lag behind
    `tokens`.
    """

    choice: int
    text: str
    tokens: tuple[int, ...]
    """Output tokens, the ending end-of-sequence token included: what usage counts."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry per token of `tokens` if the request asked for them."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the choice; None for end of sequence, length and abort."""
    num_prompt: int = 0
    num_cached: int = 0
    """Prompt tokens found in the prefix index."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of prompt tokens from the second on, if the request asked for them; they come before the first output token."""
    pooled: tuple[float, ...] | None = None
    """The answer to an embedding request: the mean of the pooled rows, of any length."""
    seed: int = 0
    """The seed in force: the request's, or the one drawn at admission."""
    error: str | None = None

    @classmethod
    def going_on(
        cls,
        choice: int,
        text: str,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...],
        num_prompt: int,
        num_cached: int,
        prompt_logprobs: tuple[TokenLogprob, ...],
        seed: int,
    ) -> Delta:
        """Of a choice that has not ended, as nearly all are; made as `plait.core.step.Chunk.of_unknown` is."""
        parts = (choice, text, tokens, logprobs, None, None, num_prompt, num_cached, prompt_logprobs, None, seed, None)
        return tuple.__new__(cls, parts)


def joined(deltas: Sequence[Delta]) -> Delta:
    """Deltas of one choice that follow each other, as one."""
    last = deltas[-1]
    if len(deltas) == 1:
        return last
    return last._replace(
        text="".join([delta.text for delta in deltas]),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        prompt_logprobs=tuple(entry for delta in deltas for entry in delta.prompt_logprobs),
        pooled=next((delta.pooled for delta in deltas if delta.pooled is not None), None),
    )


@dataclass(frozen=True, slots=True)
class Health:
    """`ok` means that requests are being served; `reason` says why not."""

    ok: bool
    num_waiting: int
    num_running: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What clients must know of the served model. `fingerprint` is the numerics fingerprint (`system_fingerprint`)."""

    name: str
    vocab_size: int
    max_model_tokens: int
    """Prompt and output tokens of one sequence together."""
    fingerprint: str
    bit_exact: bool
    weights: str = ""
    """SHA-256 of the weights; empty where nobody knows it."""
    embedding_dim: int = 0
    """Numbers in an embedding; 0 where there are none to be had."""


class EngineClient(Protocol):
    @property
    def model(self) -> ModelInfo:
        """The served model."""

    def submit(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answers as they come; a client for readers who may be slow joins those of a choice that nobody took yet.
        Raises `RequestError` at the first step if the request can never be served. Closing the iterator aborts.
        """

    async def abort(self, request: RequestId) -> None:
        """Stop working on a request; its memory is free within one step. Returns when its last answer is there, read or
        not, so that its id may be used again. Unknown ids are ignored.
        """

    def health(self) -> Health:
        """Whether the engine serves, without waiting for it."""
