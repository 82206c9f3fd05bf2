"""`plait serve` before it serves: while a model is being fetched, when that fails, and when it is only asked what it
would do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.e2e.server_process import PLAIT, serving
from tests.e2e.tiny_model import CONTEXT, write_tiny_model


class _SlowIndex(ThreadingHTTPServer):
    """A package index that lets everybody wait until `go`, and then has nothing."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = threading.Event()
        super().__init__(("127.0.0.1", 0), _Refuse)


class _Refuse(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        index = self.server
        assert isinstance(index, _SlowIndex)
        index.asked.set()
        index.go.wait(60)
        self.send_error(404)

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def index() -> Iterator[_SlowIndex]:
    with _SlowIndex() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.go.set()
        made.shutdown()


@contextmanager
def fetching(index: _SlowIndex, tmp_path: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server that waits for the index; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{index.server_address[1]}/simple"
    places = {"PIP_INDEX_URL": address, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    process = subprocess.Popen(
        [*PLAIT, "serve", "smollm2", "--port", str(port), "--cache-dir", str(tmp_path), *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **places},
    )
    try:
        assert index.asked.wait(15), "nobody asked for the model"
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.communicate()


def test_the_port_answers_while_the_model_is_fetched(index: _SlowIndex, tmp_path: Path) -> None:
    with fetching(index, tmp_path, "--served-model-name", "mine", "--api-key", "secret") as (url, process):
        with httpx.Client(base_url=url, timeout=30) as client:
            assert client.get("/live").status_code == 200
            for path in ("/health", "/ready"):
                assert client.get(path).status_code == 503
            assert client.get("/v1/models").status_code == 401
            client.headers["authorization"] = "Bearer secret"
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["mine"]
            refused = client.post("/v1/completions", json={"prompt": "a"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert refused.json()["error"]["code"] == "loading"
            assert refused.headers["x-request-id"]
        index.go.set()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("plait: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_is_still_fetching(index: _SlowIndex, tmp_path: Path, number: int) -> None:
    with fetching(index, tmp_path) as (url, process):
        assert httpx.get(f"{url}/v1/models").status_code == 503, "nobody knows a name yet"
        process.send_signal(number)
        began = time.monotonic()
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert time.monotonic() - began < 20
    assert "Traceback" not in said
    assert "was still being loaded" in said


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 40)
    done = subprocess.run(
        [*PLAIT, "serve", str(broken), "--port", "0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert re.search(rf"^plait: .*{re.escape(str(broken))}", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


def plan(model: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [*PLAIT, "serve", str(model), "--dry-run", "--kv-cache-memory", "8MiB", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_dry_run_says_what_a_start_comes_to_and_why(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf")
    told = plan(tiny, "--served-model-name", "a,b", "--api-key", "secret")
    assert told["model"]["served_as"] == ["a", "b"]
    assert told["memory"]["max_model_tokens"] == CONTEXT
    assert told["memory"]["because"] == ["KV cache memory: as given"]
    assert told["options"]["server"]["api_key"] is True
    assert "secret" not in json.dumps(told)
    with serving(tiny) as server, server.client() as client:
        (line,) = [line for line in server.said if line.startswith("memory")]
        assert f"hold {told['memory']['capacity_tokens']:,} tokens" in line
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == told["memory"]["max_model_tokens"]


def test_a_dry_run_of_what_cannot_work_fails_as_a_start_does(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf")
    command = [*PLAIT, "serve", str(tiny), "--dry-run", "--max-model-len", "100000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "--max-model-len is 100000" in done.stderr
    command = [*PLAIT, "serve", str(tiny), "--dry-run", "--otlp-traces-endpoint", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--otlp-traces-endpoint is 'nowhere'" in done.stderr
    command = [*PLAIT, "serve", str(tiny), "--dry-run", "--scheduler", "muxwise", "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "run plait calibrate on this machine" in done.stderr


def test_a_strict_server_refuses_fields_that_it_does_not_know(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf")
    asked = {"prompt": "a", "max_tokens": 1, "user": "me", "temprature": 0}
    with serving(tiny, "--strict-fields") as server, server.client() as client:
        reply = client.post("/v1/completions", json=asked)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "temprature")
        del asked["temprature"]
        assert client.post("/v1/completions", json=asked).status_code == 200
        assert client.post("/v1/responses", json={"input": "a", "max_output_tokens": 1, "x": 1}).status_code == 400


def test_a_server_whose_lines_nobody_reads_serves_and_ends_all_the_same(tmp_path: Path) -> None:
    tiny, path = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "plait.sock"
    unread, lines = os.pipe()
    command = [*PLAIT, "serve", str(tiny), "--uds", str(path), "--kv-cache-memory", "8MiB"]
    process = subprocess.Popen([*command, "--batch-dir", str(tmp_path / "batches")], stderr=lines)
    os.close(lines)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://plait") as client:
            wait_until_ready(client, path, process)
            name = {"x-request-id": "a" * 128}
            # A pipe of 64 KiB is full after some 400 lines.
            assert {client.get("/health", headers=name).status_code for _ in range(1000)} == {200}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.wait()
        os.close(unread)


def wait_until_ready(client: httpx.Client, path: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        time.sleep(0.02)
        if is_listened_at(path) and client.get("/ready").status_code == 200:
            return
    raise AssertionError("the server ended")


def is_listened_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
