"""Campaign: many inputs through worker processes, counted, with the faulty ones kept.

Owns the processes, the time they may hang, and the ledger that lets an interrupted campaign go on. What is a fault is
said by `worker.py`; a process that dies or hangs is one too.
Invariant: every number below a reader's `next` in the ledger was judged.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

MOST_WALL_SECONDS: Final = 60.0
"""For one input. The machine may be busy; what takes long by itself is stopped by its processor time."""
BATCH: Final = 1000
_ENVIRONMENT: Final = {
    # One thread and one heap, so that memory is what an input takes and not what threads keep.
    "MALLOC_ARENA_MAX": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
}


@dataclass(slots=True)
class Tally:
    """What became of one reader's inputs."""

    next: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[int, str]] = field(default_factory=list)
    slowest_s: float = 0.0

    def add(self, number: int, outcome: str, what: str, seconds: float) -> None:
        self.next = number + 1
        self.outcomes[outcome] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        if outcome == "fault":
            self.faults.append((number, what))


def run(reader: str, seed: int, end: int, tally: Tally) -> None:
    """Judge the reader's inputs up to `end`, from where the tally ends; at most a batch of them in one process."""
    stop = min(end, tally.next + BATCH)
    announced = tally.next
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder, tempfile.TemporaryFile() as errors:
        with _start([folder, reader, str(seed), str(tally.next), str(stop)], errors) as worker:
            assert worker.stdout is not None
            lines = _Lines(worker.stdout.fileno())
            for line in lines:
                said = json.loads(line)
                if "begins" in said:
                    announced = said["begins"]
                else:
                    tally.add(said["number"], said["outcome"], said["what"], said["seconds"])
            if lines.silent:
                worker.kill()
        if lines.silent:
            tally.add(announced, "fault", f"no end within {MOST_WALL_SECONDS} s", 0.0)
        elif worker.returncode != 0:
            tally.add(announced, "fault", f"the process ended with {worker.returncode}: {_end_of(errors)}", 0.0)
        elif tally.next != stop:
            raise RuntimeError(f"the worker ended at input {tally.next} of {stop}")


def replay(reader: str, folder: Path) -> str:
    """What becomes of an input that was kept."""
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as scratch, tempfile.TemporaryFile() as errors:
        worker = _start([scratch, reader, str(folder)], errors)
        said, _ = worker.communicate(timeout=MOST_WALL_SECONDS)
        return said.decode() if worker.returncode == 0 else f"ended with {worker.returncode}: {_end_of(errors)}\n"


def _end_of(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace")[-300:]


def _start(arguments: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.worker", *arguments],
        stdout=subprocess.PIPE,
        stderr=errors,
        stdin=subprocess.DEVNULL,
        env=os.environ | _ENVIRONMENT,
        cwd=Path(__file__).parents[2],
    )


class _Lines:
    """Lines of a descriptor until it ends or is silent for too long."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting = b""
        self.silent = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while b"\n" not in self._waiting:
                if not selector.select(MOST_WALL_SECONDS):
                    self.silent = True
                    raise StopIteration
                more = os.read(self._descriptor, 1 << 16)
                if not more:
                    raise StopIteration
                self._waiting += more
        line, _, self._waiting = self._waiting.partition(b"\n")
        return line


def _memory_folder() -> str | None:
    """A folder that no disk is behind, if there is one: an input is read once."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
