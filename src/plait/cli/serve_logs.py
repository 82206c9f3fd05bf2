"""Serve logs: the log lines of `plait serve`, for people or for programs.

Owns their two forms, and the thread that writes them. What is logged, and that no prompt is, is the server's business.
Invariant: whoever logs never waits; lines that nobody reads are counted and dropped.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from plait.cli.streams import say

MOST_WAITING = 10_000
"""Lines."""
END_S = 2.0

_SAID = "said"
"""The name of what is no log line."""


class _JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said)


class _TextLines(logging.Formatter):
    """For a person."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={_plain_word(value)}" for key, value in getattr(record, "fields", {}).items())
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        text = f"{when} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _plain_word(value: object) -> str:
    """Paths and ids are what clients make them: they must neither break the line nor look like another field."""
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


class Handover(logging.Handler):
    """Gives lines to a thread that writes them: whoever logs must not wait until somebody reads standard error."""

    def __init__(self, lines: logging.Handler) -> None:
        super().__init__()
        self._lines = lines
        self._waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._num_lost = 0
        self.is_stuck = False
        """At its end: nobody reads. The writer holds locks that the interpreter waits for at an ordinary exit."""
        self._writer = threading.Thread(target=self._write, name="plait-log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(record)
        else:
            self._num_lost += 1

    def say(self, text: str) -> None:
        """A line for a person, as it is, behind those before it."""
        self.emit(logging.makeLogRecord({"name": _SAID, "msg": text}))

    def end(self) -> None:
        """Write what waits, unless nobody reads it."""
        self._waiting.put(None)
        self._writer.join(END_S)
        self.is_stuck = self._writer.is_alive()

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None:
            if record.name == _SAID:
                say(record.getMessage())
            else:
                self._lines.handle(record)
            if self._num_lost:
                lost, self._num_lost = self._num_lost, 0
                fields = {"fields": {"lines": lost}}
                self._lines.handle(
                    logging.makeLogRecord({"levelname": "WARNING", "msg": "standard error was not read", **fields})
                )


@contextmanager
def logging_to_stderr(form: str) -> Iterator[Handover]:
    """While this lasts, what the server and its libraries log is written, in the order in which it was logged, and
    lines for people (`say`) among it.
    """
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(_JsonLines() if form == "json" else _TextLines())
    handover = Handover(lines)
    loggers = [
        (logging.getLogger(name), level)
        for name, level in (("plait", logging.INFO), ("uvicorn", logging.WARNING), ("opentelemetry", logging.WARNING))
    ]
    for logger, level in loggers:
        logger.setLevel(level)
        logger.addHandler(handover)
        logger.propagate = False
    try:
        yield handover
    finally:
        for logger, _ in loggers:
            logger.removeHandler(handover)
        handover.end()
