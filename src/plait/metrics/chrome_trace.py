"""Chrome trace: a profile as chrome://tracing and Perfetto read it.

Owns the file: JSON in the form of trace events, a track for each worker, one for the engine's Python, one for each
lane. Knows nothing of how it was measured.
Invariant: a file under the trace's own name is complete; slices of a track do not overlap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import orjson

from plait.core.errors import PlaitError, UsageError
from plait.core.own_file import check_replaceable
from plait.core.profiling import Phase, WorkSlice
from plait.metrics.recorder import PhaseSpan, StepSpan

JsonEvent = dict[str, object]

BEGINNING = b'{"displayTimeUnit":"ns","otherData":{"program":"plait"'
"""By which a trace of ours is known, so that nothing else is ever overwritten."""

PROCESS, ENGINE_TRACK, FIRST_LANE_TRACK, FIRST_WORKER_TRACK = 1, 1, 10, 100
PIECE = 10_000
"""Events that are turned into text at a time."""


def check_trace(path: Path) -> None:
    """Find out before any work whether the trace could be written, and whether that would destroy something."""
    if not path.parent.is_dir():
        raise UsageError(f"--profile {path}: {path.parent} is no directory; make it first, or choose another file")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--profile {path}: {path.parent} cannot be written to; choose a file in another folder")
    _check_replaced(path)


def _check_replaced(path: Path) -> None:
    check_replaceable(path, BEGINNING, "--profile", "trace of Plait")


class Trace:
    """`start_s` is the trace's zero; `facts` stand at its head."""

    def __init__(self, start_s: float, facts: Mapping[str, object]) -> None:
        self._start_s = start_s
        self._facts = facts
        self.num_slices = 0

    def write(
        self, path: Path, phases: Iterable[PhaseSpan], steps: Iterable[StepSpan], work: Iterable[WorkSlice]
    ) -> None:
        """`PlaitError` if the disk does not take it, or if the run made another file of that name."""
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            with unfinished.open("xb") as file:
                self._write(file, phases, steps, work)
            _check_replaced(path)
            os.replace(unfinished, path)
        except OSError as error:
            raise PlaitError(f"the trace {path} cannot be written: {error.strerror}; choose another file") from None
        finally:
            unfinished.unlink(missing_ok=True)

    def _write(
        self, file: BinaryIO, phases: Iterable[PhaseSpan], steps: Iterable[StepSpan], work: Iterable[WorkSlice]
    ) -> None:
        tracks = {ENGINE_TRACK: "engine (Python)"}
        events = self._events(tracks, phases, steps, work)
        head = orjson.dumps({"displayTimeUnit": "ns", "otherData": {"program": "plait", **self._facts}})
        file.write(head.removesuffix(b"}") + b',"traceEvents":[\n')
        while piece := list(islice(events, PIECE)):
            self.num_slices += len(piece)
            file.write(b"".join(orjson.dumps(event) + b",\n" for event in piece))
        names = [
            _metadata(track, kind, args) for track, name in sorted(tracks.items()) for kind, args in _named(track, name)
        ]
        file.write(
            b",\n".join(orjson.dumps(event) for event in (_metadata(0, "process_name", {"name": "plait"}), *names))
        )
        file.write(b"\n]}\n")

    def _events(
        self,
        tracks: dict[int, str],
        phases: Iterable[PhaseSpan],
        steps: Iterable[StepSpan],
        work: Iterable[WorkSlice],
    ) -> Iterator[JsonEvent]:
        """Every slice; notes in `tracks` the tracks that it met."""
        for phase, begin_s, end_s in phases:
            if phase is not Phase.WAIT:
                yield self._slice(ENGINE_TRACK, phase.value, "python", begin_s, end_s)
        for step in steps:
            track = FIRST_LANE_TRACK + step.lane
            tracks[track] = f"lane {step.lane}"
            made = self._slice(track, f"step {step.step}", "step", step.begin_s, step.end_s)
            made["args"] = {
                "step": step.step,
                "rows": step.num_rows,
                "sequences": step.num_sequences,
                "status": step.status,
            }
            yield made
        for worker, name, category, begin_s, end_s, number in work:
            track = FIRST_WORKER_TRACK + worker
            tracks[track] = f"worker {worker}"
            made = self._slice(track, name, category, begin_s, end_s)
            if number is not None:
                made["args"] = {"step": number}
            yield made

    def _slice(self, track: int, name: str, category: str, begin_s: float, end_s: float) -> JsonEvent:
        begin_ns = round((begin_s - self._start_s) * 1e9)
        end_ns = round((end_s - self._start_s) * 1e9)
        return {
            "name": name,
            "cat": category,
            "ph": "X",
            "pid": PROCESS,
            "tid": track,
            "ts": begin_ns / 1000,
            "dur": (end_ns - begin_ns) / 1000,
        }


def _named(track: int, name: str) -> Iterator[tuple[str, JsonEvent]]:
    yield "thread_name", {"name": name}
    yield "thread_sort_index", {"sort_index": track}


def _metadata(track: int, kind: str, args: JsonEvent) -> JsonEvent:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": track, "args": args}
