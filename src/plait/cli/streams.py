"""Streams: the files that every process is given, made safe to write to. Results go to stdout, all else to stderr.

Owns both streams. Imports next to nothing, because it is needed before anything else is.
Invariant: no character and no missing stream makes printing fail; words for a person never end a job.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from plait.core.errors import PlaitError

_STANDARD = (0, 1, 2)


def prepare_streams() -> None:
    """Fill the places of streams that the process was not given; escape characters that a stream does not have."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            # Else the next file that is opened, perhaps the user's answers, takes the number, and whatever a library
            # writes to its idea of stderr ends up in it. Opening takes the lowest number that is free: this one.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = sys.stderr or _nowhere()
    # Another stderr than the process's own belongs to the program around us, and its buffer would die with our wrapper.
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Words(sys.stderr.buffer, sys.stderr.encoding, "backslashreplace", line_buffering=True)


class _Words(io.TextIOWrapper):
    """Whoever writes here, a bar too, goes on if stderr is full, has lost its reader or was opened for reading only."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")


def say(text: str) -> None:
    """One line for a person; nobody may be listening."""
    if sys.stderr is not None:  # print() would choose stdout
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """A result, written out at once: if it cannot be, that is the last moment to say so in one line."""
    show_part(f"{text}\n")


def show_part(text: str) -> None:
    """A part of a line of a result, written out at once."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        # Python flushes once more at exit; what is left in its buffer may then go where nobody minds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise PlaitError(f"standard output cannot be written: {error.strerror}; send it to another place") from None


def show_json(value: Mapping[str, object]) -> None:
    """A result for programs: one line of ASCII, so that it is JSON in every encoding. The bytes of a file name that is
    not UTF-8 become \\udc80 to \\udcff, as in Python's own names.
    """
    show(json.dumps(value, allow_nan=False))
