"""`plait serve` in a process of its own, on a port that was free, for tests that are its clients.

Owns start, address and end. What the server says on stderr is read all the time, so that it never waits for a reader.
"""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import httpx2 as httpx

PLAIT = [sys.executable, "-c", "import sys; from plait.cli.main import main; sys.exit(main())"]
START_S = 60.0


class ServerProcess:
    """A running server. `url` ends in /v1, as clients want it."""

    def __init__(self, model: Path, *options: str) -> None:
        self._process = subprocess.Popen(
            [*PLAIT, "serve", str(model), "--port", "0", "--kv-cache-memory", "8MiB", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.url = self._address()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.root.removeprefix("http://").partition(":")
        return host, int(port)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait(timeout=60)

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.root, timeout=60, headers=headers)

    def is_idle(self) -> bool:
        """Nothing runs, waits or is held, as far as the server tells."""
        with self.client() as client:
            load = client.get("/load").json()
        return not any(load[key] for key in ("server_load", "num_requests_running", "num_requests_waiting"))

    def become_idle(self, within_s: float = 20.0) -> bool:
        give_up = time.monotonic() + within_s
        while not self.is_idle():
            if time.monotonic() > give_up:
                return False
            time.sleep(0.02)
        return True

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=30)
        self._listener.join(timeout=30)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _listen(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        for line in stream:
            self.said.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _address(self) -> str:
        give_up = time.monotonic() + START_S
        while (line := self._lines.get(timeout=max(0.0, give_up - time.monotonic()))) is not None:
            if found := re.search(r"serving .* at (http\S+)/v1", line):
                return f"{found[1]}/v1"
        raise AssertionError("the server ended before it served: " + "".join(self.said))


@contextmanager
def serving(model: Path, *options: str) -> Iterator[ServerProcess]:
    with ServerProcess(model, *options) as server:
        yield server
