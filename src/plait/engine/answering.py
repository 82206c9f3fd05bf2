"""Answering: from a sequence's new tokens to a client's deltas.

Owns the text stream of every live sequence and the decision that a stop string has come. Knows no tokenizer: it is
given a factory.
Invariant: after the delta with a finish reason nothing more is made for that sequence.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass

from plait.core.client import Delta
from plait.core.decision import SeqUpdate
from plait.core.ids import RequestId, SeqId
from plait.core.request import FinishReason, Sequence
from plait.core.text_stream import TextStream, TextStreamFactory


@dataclass(slots=True)
class LiveRequest:
    """A request whose choices are not all finished."""

    id: RequestId
    sequences: list[Sequence]
    num_finished: int = 0


class Answering:
    """Text streams by sequence. `factory` None: answers carry tokens only."""

    def __init__(self, factory: TextStreamFactory | None) -> None:
        self._factory = factory
        self._streams: dict[SeqId, TextStream] = {}

    def open(self, seq: Sequence) -> None:
        if self._factory is not None:
            self._streams[seq.id] = self._factory(seq.request.sampling)

    def delta(self, seq: Sequence, update: SeqUpdate) -> Delta:
        """The delta of an update. Its finish reason is STOP where a stop string was found, whatever the update says."""
        reason, stop_reason = update.finish_reason, update.stop_token
        if reason is None:
            return self._going_on(seq, update)
        if self._factory is None and stop_reason is None:
            # Tokens alone: there is no text to look through.
            return _delta(seq, update, "", len(update.tokens), reason, None)
        text, matched, num_tokens = self._text(seq, update)
        ended_by: str | int | None = matched
        if matched is not None:
            reason = FinishReason.STOP
        elif stop_reason is not None and stop_reason in seq.request.sampling.stop_token_ids:
            ended_by = stop_reason
        return _delta(seq, update, text, num_tokens, reason, ended_by)

    def _going_on(self, seq: Sequence, update: SeqUpdate) -> Delta:
        """Of a sequence that nothing but a stop string in its text can end now: one is made for every token."""
        stream, text = self._streams.get(seq.id), ""
        if stream is not None:
            pushed = stream.push(update.tokens)
            if pushed.matched is not None:
                return _delta(seq, update, pushed.text, pushed.num_tokens, FinishReason.STOP, pushed.matched)
            text = pushed.text
        return Delta.going_on(
            seq.choice,
            text,
            update.tokens,
            update.logprobs,
            seq.num_prompt,
            seq.num_cached,
            update.prompt_logprobs,
            seq.seed,
        )

    def close(self, seq: Sequence) -> None:
        self._streams.pop(seq.id, None)

    def _text(self, seq: Sequence, update: SeqUpdate) -> tuple[str, str | None, int]:
        """Of a sequence that ends: new text, the stop string that was found, how many of the update's tokens count."""
        count = len(update.tokens)
        stream = self._streams.get(seq.id)
        if stream is None:
            return "", None, count
        # The ending token itself is not text: an end-of-sequence or stop token is reported, not shown.
        shown: AnySequence[int] = update.tokens if update.stop_token is None else update.tokens[:-1]
        pushed = stream.push(shown)
        if pushed.matched is not None:
            return pushed.text, pushed.matched, pushed.num_tokens
        rest = stream.finish()
        return pushed.text + rest.text, rest.matched, count


def _delta(
    seq: Sequence,
    update: SeqUpdate,
    text: str,
    num_tokens: int,
    reason: FinishReason | None,
    ended_by: str | int | None,
) -> Delta:
    """Of the first tokens of an update."""
    return Delta(
        seq.choice,
        text,
        update.tokens[:num_tokens],
        update.logprobs[:num_tokens],
        reason,
        ended_by,
        seq.num_prompt,
        seq.num_cached,
        update.prompt_logprobs,
        update.pooled,
        seq.seed,
        update.error,
    )
