"""Serve logs: the log lines of `plait serve`, for people or for programs.

Owns their two forms. What is logged, and that no prompt is, is the server's business.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


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


def log_to_stderr(form: str) -> None:
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(_JsonLines() if form == "json" else _TextLines())
    for name, level in (("plait", logging.INFO), ("uvicorn", logging.WARNING), ("opentelemetry", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(lines)
        logger.propagate = False
