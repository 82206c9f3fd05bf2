"""Lines of the log: in order, and whoever logs does not wait for whoever reads."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading

import pytest

from plait.cli import serve_logs
from plait.cli.serve_logs import logging_to_stderr

LOG = logging.getLogger("plait.test")


class Stalled(io.StringIO):
    """Standard error whose reader has gone to sleep, until `is_read` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = threading.Event()
        self.begun = threading.Event()

    def write(self, text: str) -> int:
        self.begun.set()
        self.is_read.wait()
        return super().write(text)


def test_lines_come_in_order_with_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with logging_to_stderr("json") as written:
        written.say("a line for a person")
        for number in range(100):
            LOG.info("request", extra={"fields": {"number": number}})
        logging.getLogger("uvicorn.error").info("not worth a line")
    LOG.info("request", extra={"fields": {"number": 100}})
    first, *lines = out.getvalue().splitlines()
    assert first == "a line for a person"
    assert not written.is_stuck
    said = [json.loads(line) for line in lines]
    assert [line["number"] for line in said] == list(range(100))


def test_nobody_waits_for_a_reader_and_what_was_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Stalled()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(serve_logs, "MOST_WAITING", 5)
    with logging_to_stderr("text") as written:
        LOG.info("first")
        out.begun.wait()
        written.say("second")
        for number in range(12):
            LOG.info("later %d", number)
        out.is_read.set()
    text = out.getvalue()
    assert [word in text for word in ("first", "second", "later 3", "later 4")] == [True, True, True, False]
    assert "warning standard error was not read lines=8" in text


def test_the_end_does_not_wait_for_a_reader_either(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Stalled()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(serve_logs, "END_S", 0.01)
    with logging_to_stderr("text") as written:
        written.say("first")
        out.begun.wait()
    assert written.is_stuck
    out.is_read.set()
