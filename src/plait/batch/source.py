"""Source: the bytes of an input file, numbered by line.

Owns the open input from its first reading (digest, number of lines) to its last, and its line limit. Parses nothing.
Invariant: what is read line by line is what the digest was made of; a file that changed meanwhile is found out.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, FileIO
from typing import BinaryIO

from plait.batch.config import STDIN
from plait.core.errors import PlaitError, UsageError

MAX_LINE_BYTES = 32 * 2**20
"""A longer line is a fault of that line, so that no input can fill the memory."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class RawLine:
    """Line `number`, counted from 1 with blank lines; `raw` None: it is longer than the limit. It begins `offset` bytes
    into the input.
    """

    number: int
    raw: bytes | None
    offset: int = 0


class Source:
    """One input, read twice: at opening for digest and count, then line by line."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name = name
        self._file = file
        self._stamp = self._now()
        with _trouble_in_words(name):
            self.sha256, self.num_lines = _survey(file)

    def lines(self) -> Iterator[RawLine]:
        """Every line that is not blank, from the top."""
        self._file.seek(0)
        number = offset = 0
        while raw := self._read(MAX_LINE_BYTES + 1):
            number += 1
            begin, offset = offset, offset + len(raw)
            if len(raw) > MAX_LINE_BYTES:
                offset += self._skip_rest(raw)
                yield RawLine(number, None, begin)
                continue
            if number == 1:
                raw = raw.removeprefix(_BYTE_ORDER_MARK)
            if raw.strip():
                yield RawLine(number, raw, begin)

    def line_at(self, number: int, offset: int) -> RawLine:
        """A line that `lines` gave, once more. Not while `lines` is being walked."""
        self._file.seek(offset)
        raw = self._read(MAX_LINE_BYTES + 1)
        if number == 1:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        return RawLine(number, raw if len(raw) <= MAX_LINE_BYTES else None, offset)

    def check_unchanged(self) -> None:
        """Raise if the file was written to since its digest was made."""
        if self._now() != self._stamp:
            raise PlaitError(
                f"{self.name} changed while it was being read, so some answers may belong to other lines; "
                "run the job again with --restart"
            )

    def _skip_rest(self, raw: bytes) -> int:
        """How many bytes that were."""
        num_bytes = 0
        while raw and not raw.endswith(b"\n"):
            raw = self._read(MAX_LINE_BYTES)
            num_bytes += len(raw)
        return num_bytes

    def _read(self, limit: int) -> bytes:
        with _trouble_in_words(self.name):
            return self._file.readline(limit)

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


def check_input(path: str) -> None:
    """Raise what opening the input would raise, before anything expensive is started. A pipe is left alone."""
    if path == STDIN or not stat.S_ISFIFO(_mode(path)):
        _opened(path).close()


def num_lines_at(path: str) -> int | None:
    """Lines of an input that can be read twice; None for others, which nobody may open before the job does: who writes
    into a pipe would lose his reader.
    """
    if path == STDIN or not stat.S_ISREG(_mode(path)):
        return None
    with _opened(path) as file, _trouble_in_words(path):
        return _survey(file)[1]


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """The input behind a path.

    What cannot be read twice (standard input, a pipe) is first copied to a temporary file.
    """
    name = "standard input" if path == STDIN else path
    with _opened(path) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield Source(name, file)
            return
        with _temporary_file() as copy:
            _copy(name, file, copy)
            yield Source(name, BufferedReader(copy))


def _temporary_file() -> FileIO:
    try:
        # Without a buffer nothing waits to be written, and to fail once more, when the file is closed.
        return tempfile.TemporaryFile("w+b", buffering=0)
    except OSError as error:
        raise PlaitError(f"a temporary file cannot be made: {error}; set TMPDIR to another folder") from error


def _copy(name: str, file: BinaryIO, copy: FileIO) -> None:
    while piece := _piece(name, file):
        try:
            while piece:
                piece = piece[copy.write(piece) :]
        except OSError as error:
            raise PlaitError(
                f"{name} is copied to {tempfile.gettempdir()} first, which fails: {error.strerror}; make room there, "
                "set TMPDIR to another folder, or name a regular file"
            ) from error


def _piece(name: str, file: BinaryIO) -> bytes:
    with _trouble_in_words(name):
        return file.read(2**20)


@contextmanager
def _trouble_in_words(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlaitError(
            f"{name} cannot be read to its end: {error.strerror or error}; mend it, or give a copy of it"
        ) from error


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0  # opening it will say why


def _opened(path: str) -> BinaryIO:
    if path == STDIN and sys.stdin is None:
        raise UsageError("standard input is closed; redirect it from a file or a pipe, or name a JSONL file with -i")
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
