"""Log-probabilities: their two shapes in JSON.

Owns how a token is spelled, floored and placed in the text. Computes nothing.
Invariant: every number written is finite, and there is one entry per output token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from plait.api.bodies import JsonObject, JsonValue
from plait.core.step import TokenLogprob
from plait.text.detokenizer import Detokenizer
from plait.text.tokenizer import Tokenizer

LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot write: a token that a bias, a mask or a filter made impossible."""


class Spelling(StrEnum):
    """How tokens are written: as their text, or as `token_id:7`, which no two tokens share."""

    TEXT = "text"
    ID = "id"


def chat_logprobs(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer, spelling: Spelling = Spelling.TEXT
) -> JsonObject:
    """The shape of chat completions: one object per token."""
    content: list[JsonValue] = []
    for entry in entries:
        top: list[JsonValue] = [_token(token, logprob, tokenizer, spelling) for token, logprob in entry.top]
        content.append({**_token(entry.token, entry.logprob, tokenizer, spelling), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionOffsets:
    """Where each token's text begins in the answer, in characters, for an answer that comes in pieces.

    What the answer leaves out (stops, control tokens) begins where the text before it ends; a token inside a character
    begins at that character.
    """

    __slots__ = ("_detokenizer", "_end", "_start")

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, *, start: int = 0, continues: bool = True) -> None:
        """`start`: where the first token begins. `continues`: the tokens follow a prompt."""
        self._detokenizer = Detokenizer(tokenizer, skip_special, continues=continues)
        self._start = start
        self._end = start

    def place(self, entries: Sequence[TokenLogprob], text: str) -> list[int]:
        """Offsets of tokens that come with `text`, the next piece of the answer."""
        self._end += len(text)
        offsets = []
        for entry in entries:
            offsets.append(min(self._start + self._detokenizer.num_chars, self._end))
            self._detokenizer.push((entry.token,))
        return offsets


def completion_logprobs(
    entries: Sequence[TokenLogprob],
    tokenizer: Tokenizer,
    offsets: Sequence[int],
    spelling: Spelling = Spelling.TEXT,
) -> JsonObject:
    """The shape of text completions: parallel lists. The chosen token is always among the alternatives, as in the
    OpenAI API, and the first of them, as in vLLM.
    """
    tokens: list[JsonValue] = [_spelled(entry.token, tokenizer, spelling) for entry in entries]
    chosen: list[JsonValue] = [floored(entry.logprob) for entry in entries]
    top: list[JsonValue] = []
    for entry in entries:
        pairs = [(entry.token, entry.logprob), *entry.top]
        alternatives: JsonObject = {_spelled(token, tokenizer, spelling): floored(logprob) for token, logprob in pairs}
        top.append(alternatives)
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": list(offsets)}


def spelled(piece: bytes) -> str:
    """A token as text; one that is no whole text is spelled in bytes, so that different tokens stay different."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def floored(logprob: float) -> float:
    return float(logprob) if math.isfinite(logprob) and logprob > LOGPROB_FLOOR else LOGPROB_FLOOR


def _token(token: int, logprob: float, tokenizer: Tokenizer, spelling: Spelling) -> JsonObject:
    word, piece = _spelled(token, tokenizer, spelling), tokenizer.token_bytes(token)
    return {"token": word, "logprob": floored(logprob), "bytes": list(piece)}


def _spelled(token: int, tokenizer: Tokenizer, spelling: Spelling) -> str:
    return f"token_id:{token}" if spelling is Spelling.ID else spelled(tokenizer.token_bytes(token))
