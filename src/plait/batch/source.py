"""Source: the bytes of an input file, numbered by line.

Owns the open input from its first reading (digest, number of lines) to its last, and its line limit. Parses nothing.
Invariant: what is read line by line is what the digest was made of; a file that changed meanwhile is found out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from plait.batch.config import STDIN
from plait.core.errors import PlaitError, UsageError

MAX_LINE_BYTES = 32 * 2**20
"""A longer line is a fault of that line, so that no input can fill the memory."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class RawLine:
    """Line `number`, counted from 1 with blank lines; `raw` None: it is longer than the limit."""

    number: int
    raw: bytes | None


class Source:
    """One input, read twice: at opening for digest and count, then line by line."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name = name
        self._file = file
        self._stamp = self._now()
        self.sha256, self.num_lines = _survey(file)

    def lines(self) -> Iterator[RawLine]:
        """Every line that is not blank, from the top."""
        self._file.seek(0)
        number = 0
        while raw := self._file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                self._skip_rest(raw)
                yield RawLine(number, None)
                continue
            if number == 1:
                raw = raw.removeprefix(_BYTE_ORDER_MARK)
            if raw.strip():
                yield RawLine(number, raw)

    def check_unchanged(self) -> None:
        """Raise if the file was written to since its digest was made."""
        if self._now() != self._stamp:
            raise PlaitError(
                f"{self.name} changed while it was being read, so some answers may belong to other lines; "
                "run the job again with --restart"
            )

    def _skip_rest(self, raw: bytes) -> None:
        while raw and not raw.endswith(b"\n"):
            raw = self._file.readline(MAX_LINE_BYTES)

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


def check_input(path: str) -> None:
    """Raise what opening the input would raise, before anything expensive is started. A pipe is left alone."""
    if path != STDIN and not stat.S_ISFIFO(_mode(path)):
        _opened(path).close()


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """The input behind a path.

    What cannot be read twice (standard input, a pipe) is first copied to a temporary file.
    """
    with _opened(path) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield Source(path, file)
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy, 2**20)
            copy.flush()
            yield Source("standard input" if path == STDIN else path, copy)


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0  # opening it will say why


def _opened(path: str) -> BinaryIO:
    try:
        # A duplicate, because closing the input must not close the process's own standard input.
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb") if path == STDIN else open(path, "rb")
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist; name a JSONL file, or - for standard input") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a directory; name a JSONL file in it") from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}; name a JSONL file, or - for standard input"
        ) from error


def _survey(file: BinaryIO) -> tuple[str, int]:
    """SHA-256 of all bytes, and the number of lines that `Source.lines` will give."""
    digest = hashlib.sha256()
    num_lines = num_bytes = 0
    is_filled = False
    file.seek(0)
    first = True
    while piece := file.readline(2**20):
        digest.update(piece)
        num_bytes += len(piece)
        text = piece.removeprefix(_BYTE_ORDER_MARK) if first else piece
        first = False
        is_filled = is_filled or bool(text.strip()) or num_bytes > MAX_LINE_BYTES
        if piece.endswith(b"\n"):
            num_lines += is_filled
            is_filled, num_bytes = False, 0
    return digest.hexdigest(), num_lines + is_filled
