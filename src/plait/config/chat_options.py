"""Chat options: what a user may say about a conversation in the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.option import option
from plait.config.values import number_between, parse_flag, parse_path, parse_positive, parse_text


@dataclass(frozen=True, slots=True)
class ChatOptions:
    system: str | None = option(None, parse_text, "what the model is told before the conversation", metavar="TEXT")
    file: Path | None = option(None, parse_path, "a text in UTF-8 that goes into the first message", metavar="FILE")
    temperature: float = option(
        0.7, number_between(0, 2), "0: always the likeliest token; more: more varied", metavar="T"
    )
    top_p: float = option(
        0.95, number_between(0, 1, above=True), "draw from the likeliest tokens that have this probability", metavar="P"
    )
    max_tokens: int | None = option(
        None, parse_positive, "tokens of an answer at most; default: what the context holds", metavar="N"
    )
    stats: bool = option(False, parse_flag, "after each answer: tokens, those from the cache, and speed")
    history: bool = option(True, parse_flag, "keep what is typed for the arrow keys of later chats")
