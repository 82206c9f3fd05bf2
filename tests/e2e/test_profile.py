"""`--profile` as a user runs it: a table, figures in the JSON and a trace that fits them, whatever ends the run."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.e2e.test_batch_cli import (
    PLAIT,
    ROOMY_CONTEXT,
    batch,
    completion_line,
    many_lines,
    running_batch,
    write_lines,
)
from tests.e2e.tiny_model import LAYERS, write_tiny_model

from plait.api.bodies import JsonObject
from plait.exec.native import presence

needs_native = pytest.mark.skipif(
    presence.missing() is not None, reason="needs the native runtime, and that a C++ compiler"
)
ROUNDING_US = 0.01


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def tracks(path: Path) -> dict[str, list[JsonObject]]:
    """Slices of a trace by the name of their track, in order of time."""
    events = json.loads(path.read_bytes())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found: dict[str, list[JsonObject]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return {name: sorted(slices, key=lambda one: one["ts"]) for name, slices in found.items()}


def spans(slices: list[JsonObject]) -> Iterator[tuple[float, float]]:
    for one in slices:
        begin, took = one["ts"], one["dur"]
        assert isinstance(begin, float)
        assert isinstance(took, float)
        yield begin, begin + took


@needs_native
def test_a_batch_is_profiled(tmp_path: Path, tiny: Path) -> None:
    write_lines(tmp_path / "in.jsonl", many_lines(12))
    done = batch(tmp_path, tiny, "--profile", str(tmp_path / "trace.json"), "--threads", "2")
    assert done.returncode == 0
    assert "where the time went" in done.stderr
    profile = json.loads(done.stdout)["profile"]
    assert profile["workers"] == 2
    assert profile["units"]["lost"] == 0
    assert sum(row["seconds"] for row in profile["time"].values()) == pytest.approx(
        profile["elapsed_s"] - profile["idle_s"]
    )
    assert {"gemm q,k,v", "gemm+glu gate,up", "gemm down", "attention", "head", "sampler"} <= set(profile["time"])
    found = tracks(tmp_path / "trace.json")
    # On a busy machine the second worker may come when all is over.
    workers = [found[name] for name in ("worker 0", "worker 1") if name in found]
    assert len(found) == 2 + len(workers) > 2
    for slices in found.values():
        assert all(end <= begin + ROUNDING_US for (_, end), (begin, _) in pairwise(spans(slices)))
    steps = {step["args"]["step"]: step for step in found["lane 0"]}  # type: ignore[index, call-overload]
    assert len(steps) == profile["steps"]
    units = [one for slices in workers for one in slices if "kernel" in str(one["cat"])]
    assert len(units) == profile["units"]["units"]
    for one, (begin, end) in zip(units, spans(units), strict=True):
        ((first, last),) = spans([steps[one["args"]["step"]]])  # type: ignore[index, call-overload]
        assert first - ROUNDING_US <= begin <= end <= last + ROUNDING_US
    kernel_s = sum(end - begin for begin, end in spans(units)) / 2e6
    waiting = ("next operation", "waiting for another worker's unit")
    between = ("from one queued step to the next", "waking workers", "waking Python", "Python, no step running")
    told_s = sum(row["seconds"] for name, row in profile["time"].items() if name not in (*waiting, *between))
    assert kernel_s == pytest.approx(told_s, rel=1e-3)
    assert {f"layers.{layer}.down gemm F32" for layer in range(LAYERS)} <= {one["name"] for one in units}


def test_an_interrupted_run_leaves_a_whole_trace(tmp_path: Path) -> None:
    roomy = write_tiny_model(tmp_path / "tiny.gguf", context=ROOMY_CONTEXT)
    with running_batch(tmp_path, roomy, "--profile", str(tmp_path / "trace.json")) as process:
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    profile = json.loads(printed)["profile"]
    assert len(tracks(tmp_path / "trace.json")["lane 0"]) == profile["steps"] > 0


def test_the_reference_executor_tells_of_steps_and_python_alone(tmp_path: Path, tiny: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [completion_line("a", "x", max_tokens=3)])
    done = batch(tmp_path, tiny, "--profile", str(tmp_path / "trace.json"), "--executor", "reference")
    assert done.returncode == 0
    assert "this executor does not tell what its operations took" in done.stderr
    profile = json.loads(done.stdout)["profile"]
    assert (profile["units"], profile["overhead"]) == (None, None)
    assert profile["time"]["in steps"]["seconds"] > 0
    assert set(tracks(tmp_path / "trace.json")) == {"engine (Python)", "lane 0"}


def test_without_it_nothing_is_said_of_a_profile(tmp_path: Path, tiny: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [completion_line("a", "x", max_tokens=3)])
    done = batch(tmp_path, tiny)
    assert (done.returncode, done.stderr) == (0, "")
    assert "profile" not in json.loads(done.stdout)


def test_verify_is_profiled_too_and_a_file_of_others_is_kept(tmp_path: Path, tiny: Path) -> None:
    prompts = write_lines(tmp_path / "prompts.jsonl", [{"prompt": "a b"}, {"prompt": "b c"}])
    precious = tmp_path / "answers.json"
    precious.write_text("precious")
    command = [*PLAIT, "verify", str(tiny), "--prompts", str(prompts), "--max-tokens", "4", "--json", "--quiet"]

    def verify(profile: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, "--profile", str(profile)], capture_output=True, text=True, timeout=100)

    refused = verify(precious)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "is no trace of Plait" in refused.stderr
    assert precious.read_text() == "precious"
    done = verify(tmp_path / "trace.json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["profile"]["steps"] == len(tracks(tmp_path / "trace.json")["lane 0"])
