"""Objects: traces as JSON objects, one a line, in our names or in those that logs use.

Owns our own JSONL form, which can say all that a `TraceRequest` holds, and what is read alike: Mooncake's files
(`timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of 512 tokens), ServeGen's multimodal ones
(text and image tokens add up), and logs with common names, `usage` tables too.
Invariant: times never go back; a line that cannot be used is an error with its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.fields import (
    ARRIVAL,
    MILLISECONDS,
    MOST_MILLISECONDS,
    OUTPUT,
    PROMPT,
    json_object,
    moment,
    named,
    needed,
    number_list,
    seconds,
    tokens,
    word,
)
from plait.sim.traces.lines import Place, numbered
from plait.sim.traces.request import TraceRequest

MOONCAKE_BLOCK_TOKENS = 512
MOONCAKE_STEP_S = 3.0
"""The file's clock ticks so slowly; see `spread`."""


def is_mooncake(values: Mapping[str, object]) -> bool:
    return "hash_ids" in values and "block_tokens" not in values


def read_objects(path: Path) -> Iterator[TraceRequest]:
    """The requests of a JSONL file, one at a time; times are as in the file, in seconds."""
    before = 0.0
    for place, text in numbered(path):
        values = json_object(text, place)
        request = _request(values, place)
        if request.at_s is not None:
            if request.at_s < before:
                raise UsageError(f"{place}: the request arrives before the line above; sort the trace by time")
            before = request.at_s
        yield request


def _request(values: Mapping[str, object], place: Place) -> TraceRequest:
    usage = values.get("usage")
    lengths = usage if isinstance(usage, dict) and named(values, PROMPT) is None else values
    output = needed(lengths, OUTPUT, place)
    blocks, block_tokens = _blocks(values, place)
    return TraceRequest(
        _arrival(values, place),
        _prompt(values, lengths, place),
        tokens(lengths, output, place),
        blocks,
        block_tokens,
        word(values, "client"),
        word(values, "session"),
        seconds(values, "think_s", place, "it must be seconds, 0 or more") if "think_s" in values else None,
    )


def _arrival(values: Mapping[str, object], place: Place) -> float | None:
    name = named(values, (*ARRIVAL, *MILLISECONDS))
    if name is None or "think_s" in values:
        return None
    if name == "timestamp" and "input_length" in values:
        # Mooncake's own name for milliseconds from the start.
        expected = "it must be milliseconds from the start, 0 or more"
        return seconds(values, name, place, expected, MOST_MILLISECONDS) / 1000
    return moment(values, name, place)


def _prompt(values: Mapping[str, object], lengths: Mapping[str, object], place: Place) -> int:
    if "image_tokens" not in values or "text_tokens" not in values:
        return tokens(lengths, needed(lengths, PROMPT, place), place)
    text, images = tokens(values, "text_tokens", place, least=0), sum(number_list(values, "image_tokens", place))
    total = named(values, PROMPT)
    if total is not None and tokens(values, total, place) != text + images:
        raise place.error(total, values[total], f"text and images have {text + images} tokens together")
    return tokens({"text_tokens and image_tokens": text + images}, "text_tokens and image_tokens", place)


def _blocks(values: Mapping[str, object], place: Place) -> tuple[tuple[int, ...], int]:
    if "hash_ids" not in values:
        return (), 0
    size = tokens(values, "block_tokens", place) if "block_tokens" in values else MOONCAKE_BLOCK_TOKENS
    return number_list(values, "hash_ids", place), size
