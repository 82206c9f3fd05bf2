"""`plait reproduce` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.cli.main import main

Capture = pytest.CaptureFixture[str]


def test_without_a_case_it_lists_them(capsys: Capture) -> None:
    assert main(["reproduce"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["case", "paper", "figures", "evidence", "about"]
    assert "bullet-table-2" in [row.split()[0] for row in rows]


def test_a_case_whose_figures_come_out_ends_well(capsys: Capture) -> None:
    assert main(["reproduce", "muxwise-n-pl"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1] == "3 figures: 3 inside, 0 outside, 0 calibration, 0 not run"


def test_a_figure_outside_its_band_is_exit_code_1(capsys: Capture) -> None:
    assert main(["reproduce", "muxwise-anchors"]) == 1
    assert "1 outside" in capsys.readouterr().out.splitlines()[-1]


def test_json_is_one_object(capsys: Capture) -> None:
    assert main(["reproduce", "bullet-table-2", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "plait.reproduce/1"
    (case,) = found["cases"]
    assert case["case"] == "bullet-table-2"
    assert case["paper"]["doi"] == "10.1145/3779212.3790135"
    first = case["figures"][0]
    assert (first["published"], first["evidence"], first["verdict"]) == ("11.1", "exact", "inside")
    assert first["ours"] == pytest.approx(100 / 9)
    assert found["verdicts"] == {"inside": 9, "outside": 0, "calibration": 3, "not run": 8}


def test_the_list_is_json_too(capsys: Capture) -> None:
    assert main(["reproduce", "--json", "-"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    (found,) = (case for case in cases if case["case"] == "muxwise-n-pl")
    assert (found["paper"], found["figures"]) == ("MuxWise", 3)
    assert found["title"] == "layers of a prefill beside a decode step"


def test_an_unknown_case_names_the_nearest(capsys: Capture) -> None:
    assert main(["reproduce", "bullet-table-3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "did you mean bullet-table-2?" in err


def test_an_unknown_hardware_file_is_one_line(capsys: Capture) -> None:
    assert main(["reproduce", "estimator", "--hardware", "nowhere.json"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_json_goes_into_a_file_beside_the_table(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main(["reproduce", "muxwise-n-pl", "--json", str(path)]) == 0
    assert capsys.readouterr().out.startswith("muxwise-n-pl: MuxWise")
    assert json.loads(path.read_text(encoding="utf-8"))["verdicts"]["inside"] == 3


def test_other_files_are_not_written_over_but_reports_are(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("mine")
    assert main(["reproduce", "muxwise-n-pl", "--json", str(path)]) == 2
    assert path.read_text() == "mine"
    out, err = capsys.readouterr()
    assert (out, "exists and is no report of plait reproduce" in err) == ("", True)
    path.unlink()
    for case in ((), ("muxwise-n-pl",), ("muxwise-n-pl",)):
        assert main(["reproduce", *case, "--json", str(path)]) == 0


@pytest.mark.parametrize("name", ["", "none/report.json"])
def test_a_file_that_cannot_be_written_is_one_line_and_said_first(capsys: Capture, tmp_path: Path, name: str) -> None:
    assert main(["reproduce", "muxwise-n-pl", "--json", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--json" in err
