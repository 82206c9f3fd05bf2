"""Log-probabilities: their two shapes in JSON.

Owns how a token is spelled, floored and placed in the text. Computes nothing.
Invariant: every number written is finite, and there is one entry per output token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from plait.api.bodies import JsonObject, JsonValue
from plait.core.step import TokenLogprob
from plait.text.detokenizer import Detokenizer
from plait.text.tokenizer import Tokenizer

LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot write: a token that a bias, a mask or a filter made impossible."""


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> JsonObject:
    """The shape of chat completions: one object per token."""
    content: list[JsonValue] = []
    for entry in entries:
        top: list[JsonValue] = [_token(token, logprob, tokenizer) for token, logprob in entry.top]
        content.append({**_token(entry.token, entry.logprob, tokenizer), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer, answer: str, skip_special: bool
) -> JsonObject:
    """The shape of text completions: parallel lists. The chosen token is always among the alternatives, as in the
    OpenAI API.
    """
    tokens: list[JsonValue] = [spelled(tokenizer.token_bytes(entry.token)) for entry in entries]
    chosen: list[JsonValue] = [floored(entry.logprob) for entry in entries]
    top: list[JsonValue] = []
    for entry in entries:
        pairs = [*entry.top, (entry.token, entry.logprob)]
        alternatives: JsonObject = {spelled(tokenizer.token_bytes(token)): floored(logprob) for token, logprob in pairs}
        top.append(alternatives)
    offsets: list[JsonValue] = list(_offsets([entry.token for entry in entries], tokenizer, len(answer), skip_special))
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}


def spelled(piece: bytes) -> str:
    """A token as text; one that is no whole text is spelled in bytes, so that different tokens stay different."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def floored(logprob: float) -> float:
    return float(logprob) if math.isfinite(logprob) and logprob > LOGPROB_FLOOR else LOGPROB_FLOOR


def _token(token: int, logprob: float, tokenizer: Tokenizer) -> JsonObject:
    piece = tokenizer.token_bytes(token)
    return {"token": spelled(piece), "logprob": floored(logprob), "bytes": list(piece)}


def _offsets(tokens: Sequence[int], tokenizer: Tokenizer, end: int, skip_special: bool) -> list[int]:
    """Where each token's text begins in the answer, in characters. What the answer leaves out (stops, control tokens)
    begins where the text before it ends; a token inside a character begins at that character.
    """
    offsets = []
    detokenizer = Detokenizer(tokenizer, skip_special, continues=True)
    for token in tokens:
        offsets.append(min(detokenizer.num_chars, end))
        detokenizer.push((token,))
    return offsets
