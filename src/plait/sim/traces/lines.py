"""Lines: the text of a trace file, plain or gzip-compressed, with the number of each line for whoever complains.

Owns opening, decoding and the limits that keep memory bounded. Knows no form.
Invariant: at most one line is held at a time; trouble with the file itself names the file, with a line the line.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

from plait.core.errors import UsageError

MAX_LINE = 64 << 20
"""Characters of one line. The longest real ones, sessions of agents, have some megabytes."""
HEAD = 1 << 18
_GZIP = b"\x1f\x8b"
_NO_TEXT = re.compile("[\udc80-\udcff]")
"""Bytes that are no UTF-8, as `AS_SURROGATES` gives them."""
AS_SURROGATES = "surrogateescape"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, or an element of its array, as errors name it."""

    path: Path
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.number}"

    def error(self, field: str, value: object, expected: str) -> UsageError:
        shown = repr(value)
        return UsageError(f"{self}: {field} is {shown[:80]}{'...' if len(shown) > 80 else ''}; {expected}")


@contextmanager
def opened(path: Path, errors: str = "strict") -> Iterator[TextIO]:
    """The text of a file; compressed or not is seen from its first bytes, whatever its name. `errors`: as `open` has
    it; `AS_SURROGATES` for who reads through `bounded`, which names the line of a byte that is no text.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
        if path.suffix == ".gz" and not packed:
            raise UsageError(f"{path} cannot be read as a trace: it is called .gz but is not compressed; rename it")
        # newline="": a carriage return inside a quoted CSV value stays there.
        reader = gzip.open if packed else open
        with cast(TextIO, reader(path, "rt", encoding="utf-8", errors=errors, newline="")) as file:
            yield file
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a trace: {error}") from error


def numbered(path: Path) -> Iterator[tuple[Place, str]]:
    """Lines that are not blank, from number 1, without their ends."""
    with opened(path, AS_SURROGATES) as file:
        for number, line in enumerate(bounded(file, path), 1):
            if text := line.strip("\ufeff \t\r\n"):
                yield Place(path, number), text


def bounded(file: TextIO, path: Path) -> Iterator[str]:
    """The lines of a file as they are, none of which may fill the memory."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise UsageError(f"{path}, line {number} has more than {MAX_LINE:,} characters; is this a trace?")
        if not line.isascii() and (found := _NO_TEXT.search(line)):
            byte = ord(found[0]) - 0xDC00
            raise UsageError(f"{path}, line {number} is no UTF-8 text: it has the byte 0x{byte:02x}; is this a trace?")
        yield line


def head_of(path: Path) -> str:
    """The beginning of the text, to see what it is; a character cut in two does not matter."""
    with opened(path, AS_SURROGATES) as file:
        return file.read(HEAD).lstrip("\ufeff")
