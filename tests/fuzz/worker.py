"""Worker: reads inputs one after the other in a process of its own, within limits.

Owns what counts as a fault: anything but an end or a one-line `PlaitError`, over `MOST_SECONDS` of processor time,
more memory than twice the input plus `SPARE_BYTES`, or a word on the standard error, which is the user's terminal. What
kills the process is seen by `campaign.py`.
Invariant: an input is announced before it is read, and is a function of (seed, reader, number).

Run as `python -m tests.fuzz.worker FOLDER READER SEED FIRST END`, or with a folder of files instead of the numbers.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

from tests.fuzz.readers import READERS, Reader

from plait.core.errors import PlaitError

MOST_SECONDS: Final = 5.0
SPARE_BYTES: Final = 64 << 20
"""Of an input's memory beside twice its size: interpreter, allocator and libraries take pieces of megabytes."""
MOST_MESSAGE: Final = 2000


class _Slow(BaseException):
    """Out of processor time. Not an `Exception`, so that nothing below takes it for trouble of its own."""


def input_of(reader: str, seed: int, number: int) -> Mapping[str, bytes]:
    return READERS[reader].make(Random(f"{reader} {seed} {number}"))


def put(files: Mapping[str, bytes], folder: Path) -> int:
    """Write them, and nothing else, into the folder; return their size."""
    for old in folder.iterdir():
        old.unlink()
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return sum(map(len, files.values()))


def _private_bytes() -> int:
    """Writable memory of this process, as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmData in /proc/self/status")


def _out_of_time(signum: int, frame: FrameType | None) -> None:
    raise _Slow


def judged(reader: Reader, folder: Path, num_bytes: int) -> tuple[str, str]:
    """("read" or "refused" or "fault", what was said)."""
    limit = _private_bytes() + 2 * num_bytes + SPARE_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        reader.read(folder)
    except PlaitError as error:
        message = str(error)
        bad = "\n" in message or "\r" in message or len(message) > MOST_MESSAGE or not message
        return ("fault", f"message: {message[:200]!r}") if bad else ("refused", type(error).__name__)
    except _Slow:
        return "fault", f"over {MOST_SECONDS} s"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        at = traceback.extract_tb(error.__traceback__)[-1]
        return "fault", f"{type(error).__name__}: {str(error)[:200]!r} at {Path(at.filename).name}:{at.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return "read", ""


def _watched(reader: Reader, folder: Path, num_bytes: int) -> tuple[str, str]:
    """As `judged`; what was said aloud counts too."""
    outcome, what = judged(reader, folder, num_bytes)
    if outcome != "fault" and (aloud := _said_aloud()):
        return "fault", f"on the standard error: {aloud}"
    return outcome, what


def _said_aloud() -> str:
    """The first line that somebody wrote to the standard error, which is a file; forgotten at once."""
    os.lseek(2, 0, os.SEEK_SET)
    words = os.read(2, 1000).decode(errors="replace").strip()
    os.ftruncate(2, 0)
    os.lseek(2, 0, os.SEEK_SET)
    return " ".join(words.split())[:300]


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)


def main(arguments: list[str]) -> None:
    folder, name = Path(arguments[0]), arguments[1]
    if any(folder.iterdir()):
        # Between two inputs everything in it is deleted.
        raise SystemExit(f"{folder} is not empty; give a folder for this process alone")
    reader = READERS[name]
    signal.signal(signal.SIGPROF, _out_of_time)
    # What would be a line on the user's terminal is a fault too.
    warnings.simplefilter("error")
    if len(arguments) == 3:
        given = Path(arguments[2])
        for path in given.iterdir():
            shutil.copy(path, folder / path.name)
        _report(0, *_watched(reader, folder, sum(path.stat().st_size for path in given.iterdir())), 0.0)
        return
    seed, first, end = map(int, arguments[2:5])
    for number in range(first, end):
        num_bytes = put(input_of(name, seed, number), folder)
        _say(begins=number)
        start = time.process_time()
        outcome, what = _watched(reader, folder, num_bytes)
        _report(number, outcome, what, time.process_time() - start)
        if number % 64 == 0:
            gc.collect()


def _report(number: int, outcome: str, what: str, seconds: float) -> None:
    _say(number=number, outcome=outcome, what=what, seconds=round(seconds, 3))


if __name__ == "__main__":
    main(sys.argv[1:])
