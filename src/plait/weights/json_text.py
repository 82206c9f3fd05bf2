"""JSON from strangers: the small text files beside a checkpoint's weights, and the headers of safetensors files.

Owns the limits that such a text is held to before and while it is parsed. Knows no file's keys.
Invariant: what comes out is a tree of plain values without repeated keys, NaN or infinity, and cost a bounded amount of
memory; all trouble is a `ModelError` of one line that begins with what the text is called.
"""

from __future__ import annotations

import json
import math
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from plait.core.errors import ModelError
from plait.weights.gguf_header import shown

MAX_TEXT_BYTES: Final = 16 << 20
MAX_VALUES: Final = 2_000_000
"""Commas, colons and opening brackets of one text: more than any value costs, whatever the text."""
MAX_DEPTH: Final = 64


def read_json_file(path: Path) -> dict[str, object]:
    """The table that a JSON file holds."""
    return parse_json_table(read_small_file(path), str(path))


def read_small_file(path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """All bytes of a regular file; a pipe or a device is refused, because reading it might never end."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path}: not a regular file; fetch the model again")
        if status.st_size > limit:
            raise ModelError(f"{path}: {status.st_size:,} bytes; the limit is {limit:,}, fetch it again")
        with path.open("rb") as file:
            return file.read(status.st_size)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error}); fetch the model again") from error


def parse_json_table(raw: bytes, name: str) -> dict[str, object]:
    """The outermost table of a JSON text; `name` is what the text is called in messages."""

    def refuse(what: str) -> ModelError:
        return ModelError(f"{name}: {what}; the file is damaged, fetch it again")

    def table(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise refuse(f"the key {shown(repeated)} appears twice")
        return result

    def no_number(text: str) -> NoReturn:
        raise refuse(f"{text} is no number of JSON")

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise refuse(f"the number {shown(text)} is too large")
        return value

    _check_cost(raw, refuse)
    try:
        text = raw.decode("utf-8-sig")
        value: object = json.loads(text, object_pairs_hook=table, parse_constant=no_number, parse_float=number)
    except UnicodeDecodeError as error:
        raise refuse(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise refuse(f"brackets are nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # no JSON, or a whole number of thousands of digits
        raise refuse(f"not JSON ({' '.join(str(error).split())[:120]})") from None
    if _is_too_deep(value):
        raise refuse(f"brackets are nested deeper than {MAX_DEPTH}")
    if not isinstance(value, dict):
        raise refuse(f"it holds a {type(value).__name__}, not a table of keys and values")
    return value


def _check_cost(raw: bytes, refuse: Callable[[str], ModelError]) -> None:
    """Parsed, a text of brackets and commas alone would take fifty times its own size."""
    num_values = sum(raw.count(mark) for mark in (b",", b":", b"[", b"{"))
    if num_values > MAX_VALUES:
        raise refuse(f"it holds about {num_values:,} values; the limit is {MAX_VALUES:,}")


def _is_too_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        inside: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inside += one.values()
            elif isinstance(one, list):
                inside += one
        if not inside:
            return False
        level = inside
    return True
