"""Work log: what the workers of the native runtime did, as seconds by kind of operation and as slices of a trace.

Owns the events that were taken out of the runtime (csrc/runtime/work_record.h) until they are added up, and the first
of them for the trace. Memory is bounded: events wait for a few steps at most, and `most_slices` of them are kept.
Invariant: sums hold the units of collected steps, each once; a step's are there when it is settled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from plait.core.ids import StepId
from plait.core.profiling import STALL_S, StepWork, WorkSlice, WorkTotals
from plait.exec.native.op_names import OpName

MOST_SLICES = 1_000_000
"""32 MB in memory and about 110 MB of trace; viewers become slow beyond it."""

RECORD_EVENTS = 1 << 17
"""Of each worker between two collected steps, 4 MiB: more than steps of some seconds need."""

DUE_EVENTS = 1 << 13
"""So many at a time are added up at the lowest price: fewer pay for calls, more for fresh pages."""

EVENT = np.dtype(
    [
        ("begin_ns", np.int64),
        ("end_ns", np.int64),
        ("step", np.int64),
        ("op", np.uint32),
        ("lane", np.uint8),
        ("kind", np.uint8),
        ("unused", np.uint16),
    ]
)
"""WorkEvent."""

Events = np.ndarray[tuple[int], np.dtype[np.void]]
Rows = npt.NDArray[np.int64]
"""[events, 4]: the same bytes in a form that NumPy copies and picks from several times as fast."""
Taken = Iterable[tuple[npt.NDArray[np.uint8], int]]
"""By worker: bytes of events, and how many were lost since the start."""


class WorkKind(IntEnum):
    """The C++ enumeration of the same name."""

    UNIT = 0
    ADVANCE = 1
    BEGIN = 2
    END = 3
    SPIN = 4
    PARK = 5


_WORDS = {
    WorkKind.ADVANCE: ("next op", "runtime"),
    WorkKind.BEGIN: ("begin step", "runtime"),
    WorkKind.END: ("end step", "runtime"),
    WorkKind.SPIN: ("wait", "wait"),
    WorkKind.PARK: ("parked", "wait"),
}
"""Name and category of what is no unit."""


class NativeWorkLog:
    """Implements `plait.core.profiling.WorkLog`."""

    def __init__(self, names: Sequence[OpName], num_workers: int, most_slices: int = MOST_SLICES) -> None:
        self._names = names
        self._num_workers = num_workers
        self._slices_left = most_slices
        self._kept: list[list[Rows]] = [[] for _ in range(num_workers)]
        self._waiting: list[Rows] = []
        self._num_waiting = 0
        self._ended: list[StepId] = []
        self._in_flight: list[StepId] = []
        self._lost = [0] * num_workers
        self._kernel_s = np.zeros(len(names))
        self._runtime_s = 0.0
        self._num_units = 0
        self._num_stalls = 0
        self._stalled_s = 0.0
        self._longest_s = 0.0

    @property
    def num_workers(self) -> int:
        return self._num_workers

    @property
    def is_due(self) -> bool:
        return self._num_waiting >= DUE_EVENTS

    @property
    def is_full(self) -> bool:
        return self._slices_left == 0

    def add(self, taken: Taken, ended: Iterable[StepId] = (), in_flight: Collection[StepId] = ()) -> None:
        """`ended`: steps that were collected before this was taken. `in_flight`: those that were not yet."""
        for worker, (raw, num_lost) in enumerate(taken):
            rows = raw.view(np.int64).reshape(-1, EVENT.itemsize // 8)
            self._lost[worker] = num_lost
            self._waiting.append(rows)
            self._num_waiting += len(rows)
            kept = rows[: self._slices_left]
            self._slices_left -= len(kept)
            if len(kept):
                self._kept[worker].append(kept)
        self._ended += ended
        self._in_flight = list(in_flight)

    def settle(self) -> dict[StepId, StepWork]:
        ended, self._ended = self._ended, []
        rows = np.concatenate([np.empty((0, EVENT.itemsize // 8), np.int64), *self._waiting])
        events = _events(rows)
        is_work = events["kind"] <= WorkKind.BEGIN
        self._waiting = [_picked(rows, is_work & np.isin(events["step"], self._in_flight))]
        self._num_waiting = len(self._waiting[0])
        is_over = is_work & np.isin(events["step"], ended)
        is_unit = events["kind"] == WorkKind.UNIT
        self._runtime_s += float(np.sum(_seconds(events), where=is_over & ~is_unit))
        units = _events(_picked(rows, is_over & is_unit))
        seconds = _seconds(units)
        self._kernel_s += np.bincount(units["op"], seconds, len(self._names))
        self._num_units += len(units)
        is_stall = seconds > STALL_S
        self._num_stalls += int(np.count_nonzero(is_stall))
        self._stalled_s += float(np.sum(seconds, where=is_stall))
        self._longest_s = max(self._longest_s, float(np.max(seconds, initial=0.0)))
        return _work_of(units, ended)

    def totals(self) -> WorkTotals:
        kernel_s: dict[str, float] = {}
        for name, seconds in zip(self._names, self._kernel_s.tolist(), strict=True):
            kernel_s[name.kind] = kernel_s.get(name.kind, 0.0) + seconds
        return WorkTotals(
            kernel_s=kernel_s,
            runtime_s=self._runtime_s,
            num_units=self._num_units,
            num_stalls=self._num_stalls,
            stalled_s=self._stalled_s,
            longest_unit_s=self._longest_s,
            num_lost=sum(self._lost),
        )

    def slices(self) -> Iterator[WorkSlice]:
        for worker, pieces in enumerate(self._kept):
            for rows in pieces:
                yield from self._slices_of(worker, _events(rows))

    def _slices_of(self, worker: int, events: Events) -> Iterator[WorkSlice]:
        begins, ends = (events["begin_ns"] * 1e-9).tolist(), (events["end_ns"] * 1e-9).tolist()
        kinds, ops, steps = events["kind"].tolist(), events["op"].tolist(), events["step"].tolist()
        for kind, op, step, begin_s, end_s in zip(kinds, ops, steps, begins, ends, strict=True):
            if kind == WorkKind.UNIT:
                category = "kernel,stall" if end_s - begin_s > STALL_S else "kernel"
                yield WorkSlice(worker, self._names[op].name, category, begin_s, end_s, step)
            else:
                name, category = _WORDS[WorkKind(kind)]
                yield WorkSlice(worker, name, category, begin_s, end_s, None if category == "wait" else step)


def _events(rows: Rows) -> Events:
    events: Events = rows.view(EVENT).reshape(-1)
    return events


def _picked(rows: Rows, which: npt.NDArray[np.bool_]) -> Rows:
    """rows[which], at a tenth of its price."""
    return rows.take(np.flatnonzero(which), axis=0)


def _seconds(events: Events) -> npt.NDArray[np.float64]:
    seconds: npt.NDArray[np.float64] = (events["end_ns"] - events["begin_ns"]) * 1e-9
    return seconds


def _work_of(units: Events, ended: Sequence[StepId]) -> dict[StepId, StepWork]:
    """Of every step that ended, one without units too."""
    work = dict.fromkeys(ended, StepWork(0.0, 0.0))
    for lane in np.unique(units["lane"]).tolist():
        places = np.flatnonzero(units["lane"] == lane)
        places = places[np.argsort(units["begin_ns"][places], kind="stable")]
        begins, ends = units["begin_ns"][places], units["end_ns"][places]
        # What each unit adds behind those that began before it. Steps of a lane do not overlap, so one pass does all.
        behind = np.concatenate([begins[:1], np.maximum.accumulate(ends)[:-1]])
        added = np.maximum(ends - np.maximum(begins, behind), 0) * 1e-9
        steps, places = np.unique(units["step"][places], return_inverse=True)
        kernel_s = np.bincount(places, (ends - begins) * 1e-9, len(steps)).tolist()
        covered_s = np.bincount(places, added, len(steps)).tolist()
        for step, kernel, covered in zip(steps.tolist(), kernel_s, covered_s, strict=True):
            work[StepId(step)] = StepWork(kernel, covered)
    return work
