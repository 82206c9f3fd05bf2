"""Foretold: what a step gives when its tokens are known beforehand.

Owns the results of executors that compute nothing: a function of (sequence, position) says which token stands where,
drafts are accepted as far as they agree with it. Log-probabilities are 0 (certain), pooled vectors empty; masks and
penalties are not looked at.
Invariant: a chunk that brings an output token brings the one that was given out for its position.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from plait.core.errors import InvariantError
from plait.core.ids import SeqId
from plait.core.step import (
    SAMPLES_ONE,
    Chunk,
    Drafts,
    FromDevice,
    Join,
    OutputKind,
    SeqResult,
    SeqStatus,
    TokenLogprob,
)


class TokenSource(Protocol):
    """Which token a sequence has at an absolute position, as a sampler would choose it."""

    def __call__(self, seq: SeqId, position: int, /) -> int: ...


@runtime_checkable
class RunSource(TokenSource, Protocol):
    """One that knows many at once."""

    def run(self, seq: SeqId, first: int, count: int) -> tuple[int, ...]:
        """The tokens at positions [first, first + count)."""


class OneByOne:
    """Makes a `RunSource` of any source."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    def __call__(self, seq: SeqId, position: int) -> int:
        return self._source(seq, position)

    def run(self, seq: SeqId, first: int, count: int) -> tuple[int, ...]:
        return tuple(self._source(seq, position) for position in range(first, first + count))


def check_known_tokens(chunk: Chunk, join: Join, tokens: TokenSource) -> None:
    """Raise if the chunk feeds back another output token than was sampled."""
    if isinstance(chunk.tokens, FromDevice):
        return
    for place in range(max(0, join.num_prompt - chunk.start), len(chunk.tokens)):
        position = chunk.start + place
        expected = tokens(chunk.seq, position)
        if chunk.tokens[place] != expected:
            given = chunk.tokens[place]
            raise InvariantError(
                f"sequence {chunk.seq} is fed token {given} at position {position}, but {expected} was sampled there"
            )


def run_result(chunk: Chunk, tokens: RunSource) -> SeqResult:
    """Of a chunk in a run: a token from each of its steps."""
    return SeqResult.of_tokens(chunk.seq, chunk.num_tokens, tokens.run(chunk.seq, chunk.start + 1, chunk.num_tokens))


def chunk_result(chunk: Chunk, join: Join, tokens: TokenSource) -> SeqResult:
    """Every SAMPLE row gives a token, every LOGPROBS row its target with log-probability 0."""
    seq, start, num_tokens, _, drafts, outputs, *_ = chunk
    if outputs is SAMPLES_ONE and drafts is None and join.params.logprobs is None:
        return SeqResult.of_tokens(seq, num_tokens, (tokens(seq, start + 1),))
    if chunk.drafts is not None:
        sampled, num_accepted = _verify(chunk, chunk.drafts, tokens)
        num_computed = chunk.num_tokens - len(chunk.drafts.ids) + num_accepted
    else:
        rows = [
            r
            for out in chunk.outputs
            if out.kind is OutputKind.SAMPLE
            for r in range(out.first, out.first + out.num_rows)
        ]
        sampled, num_accepted = tuple(tokens(chunk.seq, chunk.start + row + 1) for row in rows), 0
        num_computed = chunk.num_tokens
    top = join.params.logprobs
    scored = [(out, target) for out in chunk.outputs if out.kind is OutputKind.LOGPROBS for target in out.targets]
    return SeqResult(
        chunk.seq,
        SeqStatus.OK,
        num_computed=num_computed,
        tokens=sampled,
        logprobs=() if top is None else tuple(_certain(token, top) for token in sampled),
        prompt_logprobs=tuple(_certain(target, out.top) for out, target in scored),
        num_accepted=num_accepted,
        pooled=() if any(out.kind is OutputKind.POOL for out in chunk.outputs) else None,
    )


def _certain(token: int, top: int) -> TokenLogprob:
    return TokenLogprob(token, 0.0, ((token, 0.0),) if top else ())


def _verify(chunk: Chunk, drafts: Drafts, tokens: TokenSource) -> tuple[tuple[int, ...], int]:
    """Walk down the draft tree as long as a child agrees; the last token is the one behind the accepted drafts."""
    if not any(out.kind is OutputKind.SAMPLE for out in chunk.outputs):
        raise InvariantError(f"chunk of sequence {chunk.seq} has drafts but no sampled rows that could verify them")
    position = chunk.start + chunk.num_tokens - len(drafts.ids)
    sampled: list[int] = []
    node = -1
    while True:
        token = tokens(chunk.seq, position + len(sampled))
        sampled.append(token)
        branches = zip(drafts.parents, drafts.ids, strict=True)
        child = next((i for i, (parent, guess) in enumerate(branches) if parent == node and guess == token), None)
        if child is None:
            return tuple(sampled), len(sampled) - 1
        node = child
