"""`plait tune`: what is tried, and the whole command on a tiny model. No time is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from tests.e2e.tiny_model import write_tiny_model

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from plait.cli.main import main
from plait.cli.tune import Found, _compare_steps, candidates, others_share, rows_to_try
from plait.exec.native.blocking import Blocking, GemmBlocks, row_bucket
from plait.exec.native.tape import OpKind, OpSpec, RowSpace
from plait.exec.native.trials import Mix, StepTrials

Capture = pytest.CaptureFixture[str]
PRODUCT = OpSpec(OpKind.GEMM)
HEAD = OpSpec(OpKind.GEMM, RowSpace.OUTPUTS)


def test_every_bucket_is_tried_once_and_the_head_with_few_rows_only() -> None:
    rows = list(rows_to_try(PRODUCT, 512, quick=False))
    assert rows == [1, 2, 4, 7, 14, 28, 56, 112, 224, 448]
    assert [row_bucket(one) for one in rows] == list(range(10))
    assert list(rows_to_try(HEAD, 512, quick=False))[-1] == 56
    assert list(rows_to_try(PRODUCT, 512, quick=True)) == [1, 7, 56, 448]
    assert list(rows_to_try(PRODUCT, 40, quick=False))[-1] == 40


def test_candidates_are_a_few_units_a_worker_each_once_and_no_more_than_there_is() -> None:
    few = candidates(PRODUCT, 36, 1, 2)
    assert few == [GemmBlocks(1, panels) for panels in (2, 4, 6, 10, 18)]
    many = candidates(PRODUCT, 36, 448, 2)
    assert {one.most_rows for one in many} == {48, 96, 192, 448}
    assert len(set(many)) == len(many)
    assert candidates(PRODUCT, 1, 1, 2) == [GemmBlocks(1, 1)]
    assert min(one.panels_per_block for one in candidates(OpSpec(OpKind.GEMM_GLU), 36, 1, 64)) == 2


def test_what_others_used_is_told_from_what_was_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.cli.tune.num_cores", lambda: 2)
    assert others_share((100.0, 5.0), (130.0, 25.0), 20.0) == pytest.approx(0.25)
    assert others_share((100.0, 5.0), (119.0, 25.0), 20.0) == 0.0
    assert others_share(None, (1.0, 1.0), 20.0) == 0.0


class Steps:
    """Whole steps that take so long, built-in and tuned."""

    def __init__(self, present_s: float, tuned_s: float) -> None:
        self._seconds = {True: present_s, False: tuned_s}

    def seconds_of(self, mix: Mix, blocking: Blocking) -> float:
        return self._seconds[blocking == Blocking()]


@pytest.mark.parametrize(("tuned_s", "num_left"), [(0.9, 1), (1.0, 1), (1.2, 0)])
def test_entries_that_make_whole_steps_slower_are_given_up(tuned_s: float, num_left: int, capsys: Capture) -> None:
    found = Found(products={"64 to 64 f32": {0: GemmBlocks(1, 2)}})
    steps = cast(StepTrials, Steps(1.0, tuned_s))
    _compare_steps(steps, [Mix("a step", ((1, 0),))], found)
    assert len(found.products) == num_left
    assert ("whole steps became slower" in capsys.readouterr().out) == (num_left == 0)


def test_the_command_writes_a_table_that_the_next_engine_uses(tmp_path: Path, capsys: Capture) -> None:
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    sizes = ["--cache-dir", str(tmp_path / "cache"), "--max-num-batched-tokens", "16"]
    assert main(["tune", model, "--quick", "--quiet", *sizes]) == 0
    said = capsys.readouterr().out
    (path,) = (tmp_path / "cache" / "tune").iterdir()
    assert f"tried are entries of {path}" in said
    assert "32 to 64 f32 * 64 f32" in said
    assert json.loads(path.read_text())["key"]["products"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a b"}\n')
    verify = ["verify", model, "--prompts", str(prompts), "-n", "1", "--max-tokens", "2", "--mixes", "1", *sizes]
    assert main(verify) == 0
    assert f"of {path}" in capsys.readouterr().err
    assert main([*verify, "--tune-table", "none"]) == 0
    assert "units by built-in estimates: --tune-table none" in capsys.readouterr().err
    path.write_text("spoilt")
    assert main(verify) == 0
    assert f"units by built-in estimates: {path} is no tune table" in capsys.readouterr().err
    assert main([*verify, "--tune-table", str(path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"plait: {path} is no tune table")


def test_a_table_for_an_executor_that_cuts_nothing_is_refused(tmp_path: Path, capsys: Capture) -> None:
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    assert main(["verify", model, "--executor", "reference", "--tune-table", "some.json"]) == 2
    assert "--tune-table is some.json but the reference executor cuts nothing" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["tune"], ["bench", "quality"]])
def test_a_profile_that_nobody_would_write_is_refused(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main([*command, "--model", "none.gguf", "--profile", str(tmp_path / "trace.json")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"plait: --profile is {tmp_path / 'trace.json'} but ")
    assert said.count("\n") == 1


def test_what_cannot_end_well_is_said_before_anything_is_measured(tmp_path: Path, capsys: Capture) -> None:
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    notes = tmp_path / "notes"
    notes.write_text("mine")

    def refused(*more: str) -> str:
        assert main(["tune", model, "--quick", "--cache-dir", str(tmp_path / "cache"), *more]) in (1, 2)
        said = capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.splitlines()
        return line

    assert "exists and is no tune table" in refused("--output", str(notes))
    assert notes.read_text() == "mine"
    assert "is no regular file" in refused("--output", str(tmp_path))
    assert "cannot be written to" in refused("--output", str(notes / "table.json"))
    assert "only the native executor cuts operations" in refused("--executor", "reference")
    assert "runs no engine to profile" in refused("--profile", str(tmp_path / "trace.json"))
    assert "use --block-size 16" in refused("--kv-cache-dtype", "int8", "--block-size", "8")
