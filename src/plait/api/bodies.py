"""Bodies: JSON bytes to objects and back.

Owns the JSON types of this room and the only place where bytes from outside become values. Knows no field of any
endpoint.
Invariant: a value read here holds no NaN, no infinity, no lone surrogate, and is at most 128 levels deep, so that
whatever is told back of it can be written; a value
written here is one line.
"""

from __future__ import annotations

from typing import TypeAlias

import orjson

from plait.api.body_shape import LARGE_BYTES, MAX_WORK, work_of
from plait.core.errors import RequestError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

MAX_DEPTH = 128
_MOST_WRITTEN = 254
"""Levels that orjson writes; it reads 1,024."""

_SHOWN_CHARS = 60
_OTHER_BREAKS = "\u0085\u2028\u2029"
"""Allowed in JSON's strings as they are, but many readers of lines end one at them, Python's `splitlines` too."""
_KINDS = {
    "str": "a string",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "float": "a number",
    "bool": "a boolean",
}


def read_object(raw: bytes) -> JsonObject:
    """The JSON object in `raw`, or `RequestError`. One that is large is no work for an event loop."""
    if len(raw) > LARGE_BYTES and work_of(raw) > MAX_WORK:
        raise RequestError(
            f"the body holds more than {MAX_WORK:,} values, a list counted as 4 and a member of an object as 6; send "
            "it in several requests",
            code="too_many_values",
        )
    try:
        value: JsonValue = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"not valid JSON: {error.msg}, at character {error.pos + 1}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RequestError(f"{shown(value)} where a JSON object is expected; write {{...}}", code="invalid_json")
    # Most bodies have too few brackets to be deep.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise RequestError(f"the JSON is nested more than {MAX_DEPTH} levels deep; send a flatter one", code="too_deep")
    return value


def _is_deep(value: JsonValue) -> bool:
    """Whether it is deeper than `MAX_DEPTH`. Told by writing it inside as many lists as are missing to what can be
    written: a walk in Python over the token ids of a long prompt takes ten times as long.
    """
    for _ in range(_MOST_WRITTEN - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return True
    return False


def json_bytes(value: object) -> bytes:
    """What a program of ours holds, as JSON; `RequestError` for what JSON cannot hold."""
    try:
        return orjson.dumps(value)
    except (orjson.JSONEncodeError, TypeError) as error:
        raise RequestError(f"not representable as JSON: {error}", code="invalid_json") from error


def write_line(value: JsonObject) -> str:
    """`value` as JSON without a line break, non-ASCII text kept as it is."""
    text = orjson.dumps(value).decode()
    if not text.isascii():
        for char in _OTHER_BREAKS:
            text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def shown(value: object) -> str:
    """`value` as an error message quotes it: one short line, with its kind."""
    if value is None:
        return "null"
    if isinstance(value, int) and not isinstance(value, bool):
        # Python refuses to print integers of thousands of digits, and nobody would read them.
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    kind = _KINDS.get(type(value).__name__, "a value of an unknown kind")
    text = _quoted(value)
    return kind if text is None else f"{text} ({kind})"


def _quoted(value: object) -> str | None:
    if isinstance(value, str):
        value = value[: _SHOWN_CHARS + 1]
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return None
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
