"""Prompt sets: files of OpenAI Batch lines, which `plait batch` answers, as offline load: all of it is there at once.

Owns the counting of tokens without a tokenizer (`fingerprints`), and what of a body says how long its answer may be. A
model may stop sooner; a simulation gives every answer the length that it may have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.fields import json_object, tokens
from plait.sim.traces.fingerprints import MESSAGE_TOKENS, Fingerprints, pieces_of
from plait.sim.traces.lines import Place, numbered
from plait.sim.traces.request import TraceRequest

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
UNLIMITED_TOKENS = 256
"""Of an answer whose body names no limit."""
MAX_CHOICES = 128


def is_batch_line(values: Mapping[str, object]) -> bool:
    return "custom_id" in values and "body" in values


def read_prompt_set(path: Path) -> Iterator[TraceRequest]:
    """One request for each choice of each line, all at second 0."""
    prints = Fingerprints()
    for place, text in numbered(path):
        body = json_object(text, place).get("body")
        if not isinstance(body, dict):
            raise place.error("body", body, "it must be the body of a request")
        pieces: list[object] = list(_pieces(body, place))
        if not pieces:
            raise UsageError(f"{place}: the prompt is empty; a request needs some text")
        limit = next((name for name in LIMITS if body.get(name) is not None), None)
        length = UNLIMITED_TOKENS if limit is None else tokens(body, limit, place)
        choices = tokens(body, "n", place) if body.get("n") is not None else 1
        if choices > MAX_CHOICES:
            raise place.error("body.n", choices, f"it must be at most {MAX_CHOICES}")
        blocks = prints.blocks(pieces)
        for _ in range(choices):
            yield TraceRequest(0.0, len(pieces), length, blocks, prints.block_tokens if blocks else 0)


def _pieces(body: Mapping[str, object], place: Place) -> Iterator[object]:
    messages, prompt = body.get("messages", body.get("input")), body.get("prompt")
    if isinstance(prompt, str):
        yield from pieces_of(prompt)
    elif isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        yield from prompt
    elif isinstance(prompt, list) and prompt:
        raise place.error("body.prompt", prompt, "one prompt a line is replayed here; give each a line of its own")
    elif isinstance(messages, str):
        yield from pieces_of(messages)
    elif isinstance(messages, list):
        tools = body.get("tools")
        if tools:
            yield from pieces_of(json.dumps(tools))
        for message in messages:
            if not isinstance(message, dict):
                raise place.error("body.messages", message, "each must be an object with role and content")
            yield from (f"{message.get('role')}", *("",) * (MESSAGE_TOKENS - 1))
            yield from pieces_of(_text(message.get("content")))
    else:
        raise UsageError(f"{place}: body has neither messages nor a prompt; it needs one to say what is asked")


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
