"""`plait inspect memory http://...`: whatever answers there, one line says what is wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from plait.cli.inspect_server import MAX_BYTES, ask_server
from plait.cli.main import main
from plait.core.errors import PlaitError, UsageError


@contextmanager
def answering(status: int, body: bytes, length: int | None = None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A server that gives everybody one answer, and notes who asked for what with which key."""
    asked: list[tuple[str, str]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("authorization", "")))
            self.send_response(status)
            self.send_header("content-length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_key_and_the_path_below_a_root_are_sent() -> None:
    with answering(200, b'{"layout": "paged"}') as (url, asked):
        assert ask_server(f"{url}/below/v1/", "secret") == {"layout": "paged"}
    assert asked == [("/below/debug/memory", "Bearer secret")]


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (401, b"{}", "asks for a key; give it with --api-key"),
        (404, b"no", "knows no /debug/memory; it is no Plait server"),
        (503, b"", "answers 503; look again"),
        (200, b"<html>", "something else than one JSON object"),
        (200, b"[1]", "something else than one JSON object"),
        (200, b'{"a": NaN}', "something else than one JSON object"),
        (200, b"[" * 100_000, "something else than one JSON object"),
        (200, b" " * (MAX_BYTES + 1), "something else than one JSON object"),
        (200, b"\xff\xfe", "something else than one JSON object"),
    ],
)
def test_answers_that_say_nothing_are_named(status: int, body: bytes, fault: str) -> None:
    with answering(status, body) as (url, _), pytest.raises(PlaitError, match=fault):
        ask_server(url, None)


def test_an_answer_that_ends_early_is_none() -> None:
    with answering(200, b'{"a": 1', length=10) as (url, _), pytest.raises(PlaitError, match="something else than one"):
        ask_server(url, None)


def test_nobody_there_is_said() -> None:
    with answering(200, b"") as (url, _):
        pass
    with pytest.raises(PlaitError, match=r"no answer from .*; is the server running\?"):
        ask_server(url, None)


@pytest.mark.parametrize("url", ["http://", "http://host:port", "http://[::1", "https://:80"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        ask_server(url, None)


def test_the_command_prints_one_line_of_trouble_and_no_escape(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, json.dumps({"layout": "\x1b[31mred"}).encode()) as (url, _):
        assert main(["inspect", "memory", url]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "says no number for total_bytes; is it a Plait server of this version?" in err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_the_command_passes_on_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, b'{"layout": "paged", "groups": []}') as (url, _):
        assert main(["inspect", "memory", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"layout": "paged", "groups": []}
