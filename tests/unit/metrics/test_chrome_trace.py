"""Chrome traces: valid JSON with a name for every track, and no file of anybody else's written over."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import orjson
import pytest

from plait.core.errors import PlaitError, UsageError
from plait.core.ids import StepId
from plait.core.profiling import Phase, WorkSlice
from plait.metrics.chrome_trace import PIECE, Trace, check_trace
from plait.metrics.recorder import PhaseSpan, StepSpan

Object: TypeAlias = dict[str, "str | float | dict[str, str | int]"]

PHASES = (PhaseSpan(Phase.WAIT, 10.0, 11.0), PhaseSpan(Phase.PLAN, 11.0, 11.0005))
STEPS = (StepSpan(StepId(4), 1, 11.1, 11.2, 64, 3, "completed"),)
WORK = (
    WorkSlice(0, 'a "name"', "kernel", 11.1, 11.100025, 4),
    WorkSlice(1, "wait", "wait", 11.1, 11.2, None),
)


def written(path: Path, work: tuple[WorkSlice, ...] = WORK) -> list[Object]:
    trace = Trace(10.0, {"executor": "native"})
    trace.write(path, PHASES, STEPS, work)
    read = orjson.loads(path.read_bytes())
    assert read["otherData"] == {"program": "plait", "executor": "native"}
    events: list[Object] = read["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == trace.num_slices
    return events


def test_slices_lie_on_tracks_of_workers_lanes_and_the_engine(tmp_path: Path) -> None:
    events = written(tmp_path / "t.json")
    names = {event["tid"]: event["args"] for event in events if event["name"] == "thread_name"}
    of_track = {
        names[event["tid"]]["name"]: (event["name"], event["ts"], event["dur"], event.get("args"))  # type: ignore[index, call-overload]
        for event in events
        if event["ph"] == "X"
    }
    assert of_track == {
        "engine (Python)": ("plan", 1_000_000.0, 500.0, None),
        "lane 1": (
            "step 4",
            1_100_000.0,
            100_000.0,
            {"step": 4, "rows": 64, "sequences": 3, "status": "completed"},
        ),
        "worker 0": ('a "name"', 1_100_000.0, 25.0, {"step": 4}),
        "worker 1": ("wait", 1_100_000.0, 100_000.0, None),
    }


def test_a_trace_of_many_pieces_is_whole(tmp_path: Path) -> None:
    work = tuple(WorkSlice(0, "op", "kernel", 10 + n * 1e-3, 10.0005 + n * 1e-3, n) for n in range(2 * PIECE + 5))
    events = written(tmp_path / "t.json", work)
    starts = [event["ts"] for event in events if event["ph"] == "X" and event["name"] == "op"]
    assert starts == [n * 1000.0 for n in range(2 * PIECE + 5)]


def test_a_run_without_anything_is_a_trace_too(tmp_path: Path) -> None:
    Trace(0.0, {}).write(tmp_path / "t.json", (), (), ())
    events = orjson.loads((tmp_path / "t.json").read_bytes())["traceEvents"]
    assert {event["ph"] for event in events} == {"M"}


def test_an_earlier_trace_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    check_trace(path)
    written(path)
    check_trace(path)
    written(path)
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]
    path.write_text('{"traceEvents": []}')
    with pytest.raises(UsageError, match="exists and is no trace of Plait; remove it"):
        check_trace(path)


@pytest.mark.parametrize(
    ("name", "trouble"),
    [("none/t.json", "is no directory"), (".", "is no regular file"), ("link", "is no regular file")],
)
def test_what_could_not_be_written_is_said_before_any_work(name: str, trouble: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(UsageError, match=trouble):
        check_trace(tmp_path / name)


def test_what_the_run_itself_wrote_under_the_name_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    check_trace(path)
    path.write_text("answers")
    with pytest.raises(UsageError, match="exists and is no trace of Plait"):
        Trace(0.0, {}).write(path, PHASES, STEPS, WORK)
    assert path.read_text() == "answers"
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


def test_a_trace_that_cannot_be_written_leaves_no_half_of_one(tmp_path: Path) -> None:
    (tmp_path / "t.json").mkdir()
    with pytest.raises(PlaitError, match="is no regular file"):
        Trace(0.0, {}).write(tmp_path / "t.json", PHASES, STEPS, WORK)
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


def test_a_folder_that_is_gone_is_trouble_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PlaitError, match=r"cannot be written: No such file or directory; choose another file$"):
        Trace(0.0, {}).write(tmp_path / "gone" / "t.json", PHASES, STEPS, WORK)
