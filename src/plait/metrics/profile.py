"""Profile: one engine's measurements from its start to the file and the table that come of them.

Owns the order of the end: sums first, then the trace, then what there is to say. The pieces are `recorder`,
`chrome_trace` and `profile_figures`.
Invariant: figures are made once, when nothing is measured any more; a trace that cannot be written costs only itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plait.core.errors import PlaitError
from plait.core.executor import ExecutorInfo
from plait.core.profiling import WorkLog
from plait.metrics.chrome_trace import Trace
from plait.metrics.profile_figures import Figures
from plait.metrics.recorder import Recorder


class Profile:
    """`work`: what the executor tells of its workers; None: nothing. The file was looked at by `check_trace`."""

    def __init__(self, path: Path, now: Callable[[], float], info: ExecutorInfo, work: WorkLog | None) -> None:
        self._path = path
        self._info = info
        self._work = work
        self._figures: Figures | None = None
        self.recorder = Recorder(now, work)

    def finish(self, report: Callable[[str], None]) -> Figures:
        """When engine and executor have stopped: writes the trace and reports what it all comes to, the first time."""
        if self._figures is None:
            self._figures = self._finished(report)
            for line in self._figures.lines():
                report(line)
        return self._figures

    def _finished(self, report: Callable[[str], None]) -> Figures:
        recorder, info = self.recorder, self._info
        trace = Trace(recorder.start_s, {"executor": info.name, "numerics": info.fingerprint})
        slices = () if self._work is None else self._work.slices()
        try:
            trace.write(self._path, recorder.phases, recorder.steps, slices)
        except PlaitError as error:
            report(f"plait: {error}")
            return recorder.figures(info.name, None, 0)
        return recorder.figures(info.name, str(self._path), trace.num_slices)
