"""Outcome: what newly sampled tokens mean for a sequence.

Owns the order of the ends: end of sequence or stop token, then the end of a form, then length. Stop strings are decided
by the engine, which sees text.
"""

from __future__ import annotations

from plait.core.decision import SeqUpdate
from plait.core.request import FinishReason, Sequence
from plait.core.step import SeqResult


def take_tokens(seq: Sequence, given: SeqResult, eos_token_ids: tuple[int, ...]) -> SeqUpdate:
    """Append sampled tokens to the sequence up to its end, and report them. Tokens behind an end are dropped."""
    tokens = given.tokens
    if len(tokens) == 1 and _goes_on_behind(seq, tokens[0], eos_token_ids):  # as nearly all do
        seq.tokens.append(tokens[0])
        return SeqUpdate.of_tokens(seq.id, tokens, given.logprobs)
    if seq.ends_by_length:
        return _take_up_to_length(seq, given)
    sampling, num_output = seq.request.sampling, len(seq.tokens) - seq.num_prompt
    reason: FinishReason | None = None
    stop_token: int | None = None
    num_taken = 0
    for token in given.tokens:
        seq.tokens.append(token)
        num_taken += 1
        num_output += 1
        is_eos = token in eos_token_ids and not sampling.ignore_eos
        if (is_eos or token in sampling.stop_token_ids) and num_output > sampling.min_tokens:
            reason, stop_token = FinishReason.STOP, token
            break
        if seq.constraint is not None:
            seq.constraint.accept(token)
            if seq.constraint.is_over:
                reason = FinishReason.STOP
                break
        if num_output >= seq.max_output_tokens:
            reason = FinishReason.LENGTH
            break
    else:
        return SeqUpdate.of_tokens(seq.id, given.tokens, given.logprobs)
    return SeqUpdate(seq.id, given.tokens[:num_taken], given.logprobs[:num_taken], reason, stop_token)


def _goes_on_behind(seq: Sequence, token: int, eos_token_ids: tuple[int, ...]) -> bool:
    """Whether a token certainly ends nothing: whoever has a form, or a token that might, is looked at more closely."""
    if len(seq.tokens) - seq.num_prompt + 1 >= seq.max_output_tokens or seq.constraint is not None:
        return False
    return seq.ends_by_length or not (token in eos_token_ids or token in seq.request.sampling.stop_token_ids)


def _take_up_to_length(seq: Sequence, given: SeqResult) -> SeqUpdate:
    """Of a sequence that nothing else ends: what no token has to be looked at for."""
    tokens = given.tokens[: seq.max_output_tokens - seq.num_output]
    seq.tokens += tokens
    reason = FinishReason.LENGTH if seq.num_output >= seq.max_output_tokens else None
    return SeqUpdate(seq.id, tokens, given.logprobs[: len(tokens)], reason)
