"""Output: the files that a user reads.

Owns the partial file, which grows while the job runs, and the whole output, which appears at once when every line is
there. Neither is believed: both are made from the ledger. Invariant: a file under the output's own name is complete, in
the order of the input, and on the disk.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from plait.batch.config import STDIN, BatchConfig
from plait.core.errors import PlaitError, UsageError


def check_output(config: BatchConfig) -> None:
    """Find out before any work whether the output could be written, and whether that would destroy something."""
    output = config.output
    if output.is_dir():
        raise UsageError(f"{output} is a directory; name a file in it")
    if os.path.lexists(output) and not output.is_file():
        raise UsageError(f"{output} is no regular file, nor a link to one; choose another output")
    if not output.parent.is_dir():
        raise UsageError(f"{output.parent} is no directory; make it first, or choose another output")
    if not os.access(output.parent, os.W_OK):
        raise UsageError(f"{output.parent} cannot be written to; choose an output in another folder")
    if config.ledger.exists() and not os.access(config.ledger, os.R_OK | os.W_OK):
        raise UsageError(
            f"{config.ledger} cannot be written to; make it writable to go on with its job, or choose another output"
        )
    _check_input_survives(config)
    for path in (output, config.partial, config.unpublished):
        if path.exists() and not config.ledger.exists() and not config.restart:
            raise UsageError(
                f"{path} exists and was not made by a batch of this name ({config.ledger} is missing); "
                "add --restart to replace it, or choose another output"
            )


def _check_input_survives(config: BatchConfig) -> None:
    of_input = _identity(config.input)
    for path in config.written:
        if of_input is not None and _identity(path) == of_input:
            raise UsageError(f"{path} is the input itself, and the job would write to it; choose another output")


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Device and inode of what a path leads to, or of what standard input comes from; None if there is nothing."""
    if path == STDIN and sys.stdin is None:
        return None
    try:
        status = os.fstat(sys.stdin.fileno()) if path == STDIN else os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class OutputFiles:
    """The partial file, open for appending until `close`, and the way to the whole output."""

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._partial: BinaryIO | None = None

    def begin(self, outputs: Iterable[str]) -> None:
        """Start the partial file with the lines of earlier runs; what a killed run left in it is replaced."""
        with _trouble_in_words(self._config.partial):
            self._partial = open(self._config.partial, "wb")  # noqa: SIM115 - open until `close`
            self._write(self._partial, outputs)

    def append(self, outputs: Iterable[str]) -> None:
        """Add finished lines. They are already safe in the ledger, so nothing waits for the disk here."""
        assert self._partial is not None, "begin comes before append"
        with _trouble_in_words(self._config.partial):
            self._write(self._partial, outputs)

    def publish(self, outputs: Iterable[str]) -> str:
        """Write the whole output and give it its name; the partial file goes. Returns the output's sha256."""
        digest = hashlib.sha256()
        unpublished = self._config.unpublished
        with _trouble_in_words(self._config.output):
            with open(unpublished, "wb") as file:
                for output in outputs:
                    digest.update(_line(output))
                    file.write(_line(output))
                file.flush()
                os.fsync(file.fileno())
            os.replace(unpublished, self._config.output)
            sync_directory(self._config.output.parent)
            self.close()
            self._config.partial.unlink(missing_ok=True)
        return digest.hexdigest()

    def close(self) -> None:
        if self._partial is not None:
            # After a failed write, closing tries it again. It was reported, and nobody believes this file.
            with suppress(OSError):
                self._partial.close()

    def _write(self, file: BinaryIO, outputs: Iterable[str]) -> None:
        for output in outputs:
            file.write(_line(output))
        file.flush()


def _line(output: str) -> bytes:
    return output.encode() + b"\n"


def is_published(output: Path, sha256: str) -> bool:
    """Whether the output is what `publish` wrote when it returned this digest."""
    try:
        with open(output, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def sync_directory(path: Path) -> None:
    """A rename is on the disk only when its directory is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _trouble_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlaitError(
            f"{path} could not be written: {error.strerror or error}; finished lines are safe in the ledger: "
            "make room or mend permissions, then run the same command again"
        ) from error
