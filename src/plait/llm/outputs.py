"""Outputs: what the Python API gives, in vLLM's shapes.

Owns the values and nothing else; `answer.py` makes them from deltas.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Logprob:
    """Of one token: `rank` counts from 1, None where the token is not among the reported ones."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `finish_reason` is "stop", "length", "abort" or "error" (`stop_reason` then says what happened), None
    while it goes on.
    """

    index: int
    text: str
    token_ids: list[int]
    """The ending end-of-sequence or stop token included."""
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    """For each output token, the token itself and its alternatives by token id."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for end of sequence and length."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The answers to one prompt."""

    request_id: str
    prompt: str | None
    """None where the prompt came as token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """For each prompt token, as in `CompletionOutput.logprobs`; None for the first one, and for all if nobody asked."""
    outputs: list[CompletionOutput]
    """In order of `index`."""
    finished: bool
    metrics: None = None
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values were there already."""


@dataclass(slots=True, repr=False)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


@dataclass(slots=True)
class EmbeddingRequestOutput:
    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
