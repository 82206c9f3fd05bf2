"""A peer's server as a process: started by a command line, awaited, frozen while others are measured, ended.

Owns the process and everything that it starts. Invariant: none of them outlives the `with` block.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STOP_S = 10.0
POLL_S = 0.25


class ServerProcess:
    def __init__(self, command: str, log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            # A session of its own: a signal to it reaches its workers, and none of ours reaches them.
            self._process = subprocess.Popen(
                shlex.split(command), stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def wait_until(self, is_there: Callable[[], bool], timeout_s: float) -> float:
        """Seconds until it answered; `RuntimeError` if it ended or did not."""
        began = time.monotonic()
        while not is_there():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}; its words are in {self._log}")
            if time.monotonic() - began > timeout_s:
                raise RuntimeError(f"the server does not answer after {timeout_s:g} s; its words are in {self._log}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self.thaw()
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        # Whoever is left of its group, its leader included, has had its time.
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextmanager
def serving(command: str, log: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(command, log)
    try:
        yield process
    finally:
        process.stop()
