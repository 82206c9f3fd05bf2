"""Documents: files that are one JSON value and not lines of them, an object or an array at a time.

Owns the reading of an array element by element, so that memory holds one of them, and of one object as a whole.
Invariant: an error names the file and, in an array, which element.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.lines import MAX_LINE, Place, opened

MAX_DOCUMENT = 512 << 20
"""Characters of a file that is one object; a benchmark's result with all its texts has some hundred megabytes."""
_READ = 1 << 20
_SPACE = " \t\r\n"


def read_document(path: Path) -> dict[str, object]:
    """A file that is one object."""
    with opened(path) as file:
        text = file.read(MAX_DOCUMENT + 1)
    if len(text) > MAX_DOCUMENT:
        raise UsageError(f"{path} has more than {MAX_DOCUMENT:,} characters in one object; save it without texts")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a JSON object but {type(value).__name__}; a benchmark's result is expected")
    return value


def elements(path: Path) -> Iterator[tuple[Place, dict[str, object]]]:
    """The objects of a file that is one array, counted from 1."""
    decoder = json.JSONDecoder()
    with opened(path) as file:
        text = file.read(_READ).lstrip("\ufeff" + _SPACE)[1:]
        number = 1
        while True:
            text = text.lstrip(_SPACE + ",")
            if text.startswith("]"):
                return
            try:
                value, end = decoder.raw_decode(text)
            except (ValueError, RecursionError) as error:
                more = file.read(_READ) if len(text) <= MAX_LINE else ""
                if not more:
                    raise UsageError(f"{path}, element {number} of the array is not JSON ({error})") from None
                text += more
                continue
            if not isinstance(value, dict):
                raise UsageError(f"{path}, element {number} of the array is not an object but {type(value).__name__}")
            yield Place(path, number, "element"), value
            number += 1
            text = text[end:]
