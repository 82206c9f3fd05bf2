"""Tables as people read them."""

from __future__ import annotations

from tests.unit.reproduce.making import PEAK, case, figure

from plait.reproduce.band import Near
from plait.reproduce.case import run_case
from plait.reproduce.figure import Answer, Evidence, Measured, NotRun, Sampled
from plait.reproduce.tables import list_lines, report_lines, summary_line


def test_a_table_shows_what_is_compared_and_says_the_rest_below() -> None:
    figures = (
        figure("first", "1.50", Near(0.1), unit="x", note="of one GPU"),
        figure("second", "2", unit="x", evidence=Evidence.SIMULATED, calibrated_on=(PEAK,), note="of one GPU"),
        figure("third", "3.0", unit="x"),
        figure("fourth", "4.0", unit="x", evidence=Evidence.SIMULATED),
        figure("fifth", "5.0", evidence=Evidence.REAL_CPU),
    )
    answers: dict[str, Answer] = {
        "first": 1.6,
        "second": Sampled((2.0, 4.0)),
        "third": NotRun("needs a GPU"),
        "fourth": 4.0,
    }
    answers["fifth"] = Measured(4.9, "two cores")
    report = run_case(case(figures, answers))
    assert report_lines(report) == [
        "one: Bullet (ASPLOS 2026), speeds",
        "",
        "figure  published    ours  band        evidence   verdict",
        "first       1.50x  1.600x  +-10 %      exact      inside",
        "second         2x    3.0x  its digits  simulated  outside",
        "third        3.0x       -  -           not run    -",
        "fourth       4.0x   4.00x  its digits  simulated  inside",
        "fifth         5.0    4.90  its digits  real-cpu   outside",
        "",
        "- second: simulated (calibrated on: Bullet 3, peak)",
        "- fourth: simulated (calibrated on: nothing)",
        "",
        "- first; second: of one GPU",
        "- second: mean of 2 seeds, 2.0x to 4.0x",
        "- third: not run: needs a GPU",
        "- fifth: measured on two cores",
    ]
    assert summary_line([report]) == "5 figures: 2 inside, 2 outside, 0 calibration, 1 not run"


def test_a_column_that_says_nothing_is_left_out() -> None:
    report = run_case(case((figure("n", "", worked_out="8"),), {"n": 8}))
    assert report_lines(report)[2:] == [
        "figure  worked out  ours  band   evidence  verdict",
        "n                8     8  equal  exact     inside",
    ]


def test_a_note_of_many_figures_names_the_first() -> None:
    figures = tuple(figure(name, note="all alike") for name in "abcde")
    report = run_case(case(figures, dict.fromkeys("abcde", 1.5)))
    assert report_lines(report)[-1] == "- a and 4 more: all alike"


def test_the_list_says_how_many_figures_of_which_evidence() -> None:
    figures = (figure("a"), figure("b", evidence=Evidence.SIMULATED))
    assert list_lines([case(figures, {})]) == [
        "case  paper   figures  evidence          about",
        "one   Bullet        2  exact, simulated  speeds",
    ]
