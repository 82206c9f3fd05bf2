"""A program in a pseudo-terminal: what a person would type, and what would be seen.

Owns the terminal and the process in it, which are both gone when the context ends.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE_S = 60.0


class Terminal:
    """`seen` is everything that was printed, by the program and by the terminal's echo of what was typed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        ours, theirs = pty.openpty()
        self._fd = ours
        self.seen = ""
        self._begin = 0
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=dict(environment),
            cwd=folder,
            # Its own session with this terminal, so that Ctrl-C becomes a signal to it.
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(theirs),
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._fd)

    def type(self, text: str) -> None:
        """From here on `wait_for` looks at what comes next."""
        self._begin = len(self.seen)
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> str:
        """What was printed since the last typing, up to and with `text`."""
        until_s = time.monotonic() + PATIENCE_S
        while text not in self.seen[self._begin :]:
            if time.monotonic() > until_s or not self._read(until_s):
                raise AssertionError(f"{text!r} did not come; seen:\n{self.seen}")
        end = self.seen.index(text, self._begin) + len(text)
        return self.seen[self._begin : end]

    def wait_end(self) -> int:
        until_s = time.monotonic() + PATIENCE_S
        while self._read(until_s):
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self, until_s: float) -> bool:
        """False: the program has closed its end, or time is up."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, until_s - time.monotonic()))
        try:
            piece = os.read(self._fd, 1 << 16) if ready else b""
        except OSError:  # how Linux says that nobody has the other end open
            return False
        self.seen += piece.decode("utf-8", "replace")
        return bool(piece)


def _take_terminal(fd: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
