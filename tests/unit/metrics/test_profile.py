"""A profile's end: one file, one table, once, and figures even where the file cannot be written."""

from __future__ import annotations

from pathlib import Path

import orjson
from tests.unit.engine.kit import INFO

from plait.core.profiling import Phase
from plait.metrics.profile import Profile


def test_it_is_finished_once(tmp_path: Path) -> None:
    said: list[str] = []
    profile = Profile(tmp_path / "t.json", lambda: 1.0, INFO, None)
    profile.recorder.phase(Phase.PLAN)
    figures = profile.finish(said.append)
    assert profile.finish(said.append) is figures
    assert said == figures.lines()
    assert said[-1] == f"trace     {tmp_path / 't.json'}: {figures.num_slices} slices"
    assert orjson.loads((tmp_path / "t.json").read_bytes())["otherData"]["executor"] == "simulated"


def test_a_trace_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    said: list[str] = []
    figures = Profile(tmp_path / "gone" / "t.json", lambda: 1.0, INFO, None).finish(said.append)
    assert figures.trace is None
    assert said == [
        f"plait: the trace {tmp_path}/gone/t.json cannot be written: No such file or directory; choose another file",
        *figures.lines(),
    ]
    assert not any(line.startswith("trace") for line in said)
