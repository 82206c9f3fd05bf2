"""Continuing: prompts that end inside the last message, so that the answer goes on with it.

Owns finding that place in what a chat template wrote. Renders nothing.
Invariant: what is cut off was written by the template behind the last message, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.errors import RequestError
from plait.text.tokenizer import Tokenizer


def up_to_the_end_of(content: object, tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The tokens of a rendered conversation without what follows `content`, its last message's."""
    text = _text(content)
    if not text:
        raise _impossible("the last message has no text, which continue_final_message needs")
    rendered = tokenizer.decode(tokens, skip_special=False)
    if tokenizer.encode(rendered, add_special=False, parse_special=True) != list(tokens):
        raise _impossible("a message spells control tokens, so the end of the last one cannot be found; reword it")
    place = rendered.rfind(text)
    if place < 0:
        raise _impossible("the chat template changes the last message, so its end cannot be found; reword it")
    return tokenizer.encode(rendered[: place + len(text)], add_special=False, parse_special=True)


def _text(content: object) -> str:
    """What templates leave of a message: they strip it."""
    if isinstance(content, list):
        # Parts are written one behind the other, so the last one ends the message.
        content = content[-1].get("text") if content and isinstance(content[-1], dict) else None
    return content.strip() if isinstance(content, str) else ""


def _impossible(reason: str) -> RequestError:
    return RequestError(reason, param="continue_final_message")
