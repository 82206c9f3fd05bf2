"""Fields: numbers and times out of the values of a line, under whatever names people give them.

Owns the names that are understood, the units behind them, and the messages for values that cannot be used.
Invariant: a value that gets through is a whole number of tokens or a finite time; everything else is an error that
names the line, the field, the value and what was expected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime

from plait.core.errors import UsageError
from plait.sim.traces.lines import Place
from plait.sim.traces.request import MAX_TOKENS

ARRIVAL = (
    *("arrival_s", "arrival_time", "arrived_at", "arrival_timestamp", "timestamp", "time", "ts", "start_time"),
    *("startTime", "request_time", "created", "created_at", "TIMESTAMP", "Timestamp"),
)
MILLISECONDS = ("timestamp_ms", "arrival_ms", "arrival_time_ms", "start_time_ms")
PROMPT = (
    *("input_tokens", "prompt_tokens", "input_length", "prompt_length", "input_len", "prompt_len", "num_input_tokens"),
    *("num_prompt_tokens", "ContextTokens", "Request tokens", "num_prefill_tokens"),
)
OUTPUT = (
    *("output_tokens", "completion_tokens", "output_length", "output_len", "completion_length", "generated_tokens"),
    *("num_output_tokens", "GeneratedTokens", "Response tokens", "num_decode_tokens"),
)
TOKENS_EXPECTED = "it must be a whole number of tokens, 1 or more"
MOST_SECONDS = 1e11
"""Of a time. Far beyond, a step of some milliseconds is less than two neighbouring floats differ by."""
MOST_MILLISECONDS = 1000 * MOST_SECONDS
SECONDS_EXPECTED = f"it must be seconds from the start, 0 to {MOST_SECONDS:g}"
_EPOCH_MS = 1e11
"""Larger numbers are milliseconds since 1970; as seconds they would lie beyond the year 5000."""


def named(values: Mapping[str, object], names: tuple[str, ...]) -> str | None:
    """The first of `names` that is there."""
    return next((name for name in names if name in values), None)


def needed(values: Mapping[str, object], names: tuple[str, ...], place: Place) -> str:
    found = named(values, names)
    if found is None:
        raise UsageError(
            f"{place}: {names[0]} is missing; a request needs it, under this name or one of {_some(names)}"
        )
    return found


def tokens(values: Mapping[str, object], name: str, place: Place, least: int = 1) -> int:
    """A number of tokens, as a number or as text of digits. Below `least` is an error."""
    value = found = values[name]
    is_digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12
    if is_digits or (isinstance(value, float) and value.is_integer()):
        assert isinstance(value, str | float)
        found = int(value)
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= MAX_TOKENS:
        raise place.error(name, value, TOKENS_EXPECTED if least else "it must be a whole number of tokens, 0 or more")
    return found


def seconds(
    values: Mapping[str, object],
    name: str,
    place: Place,
    expected: str = SECONDS_EXPECTED,
    most: float = MOST_SECONDS,
) -> float:
    """A time as a number or as text of one, 0 to `most`."""
    value = values[name]
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not 0 <= found <= most:  # nor is it for what is no number
        raise place.error(name, value, expected)
    return found


def moment(values: Mapping[str, object], name: str, place: Place) -> float:
    """A time as seconds on some clock: a number (milliseconds by name, or where it can be nothing else), or a date."""
    value = values[name]
    if isinstance(value, str) and not _is_number(value):
        return date_s(value, name, place)
    expected = "it must be a number of seconds or milliseconds, or a date such as 2026-01-31T12:00:00Z"
    found = seconds(values, name, place, expected, MOST_MILLISECONDS)
    return found / 1000 if name in MILLISECONDS or found > _EPOCH_MS else found


def _is_number(text: str) -> bool:
    """Also one such as 5e-05, as which programs write small times."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def date_s(text: str, name: str, place: Place) -> float:
    """A date as seconds since 1970; one without a zone is taken to be in UTC, as only differences matter."""
    cleaned = text.strip()
    # Seven figures behind the point, as Azure writes them, are one more than a datetime holds.
    head, point, tail = cleaned.partition(".")
    digits = next((at for at, letter in enumerate(tail) if not letter.isdigit()), len(tail))
    try:
        found = datetime.fromisoformat(f"{head}{point}{tail[: min(digits, 6)]}{tail[digits:]}")
    except ValueError:
        raise place.error(
            name, text, "it must be a date such as 2026-01-31T12:00:00Z, or a number of seconds"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def json_object(text: str, place: Place) -> dict[str, object]:
    """A line that is a JSON object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON ({error}); each line must be one object") from None
    if not isinstance(values, dict):
        raise UsageError(f"{place} is not a JSON object but {type(values).__name__}; each line must be one object")
    return values


def number_list(values: Mapping[str, object], name: str, place: Place) -> tuple[int, ...]:
    """A list of whole numbers, 0 or more."""
    found = values[name]
    # `type(one) is int`: true is an int too.
    if not isinstance(found, list) or not all(type(one) is int and 0 <= one < 1 << 62 for one in found):
        raise place.error(name, found, "it must be a list of whole numbers, 0 or more")
    return tuple(found)


def word(values: Mapping[str, object], name: str) -> str:
    """What a client is called; numbers are names too."""
    value = values.get(name)
    return "" if value is None else str(value)[:200]


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[1:8])
