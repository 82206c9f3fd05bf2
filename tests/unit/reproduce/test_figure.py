"""Verdicts, and above all that calibration is never a success."""

from __future__ import annotations

import pytest
from tests.unit.reproduce.making import PEAK, SPEED, figure

from plait.core.errors import InvariantError
from plait.reproduce.band import Between, Near, Value
from plait.reproduce.figure import Evidence, NotRun, Outcome, Sampled, Verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(1.5, Verdict.INSIDE), (1.504, Verdict.INSIDE), (1.51, Verdict.OUTSIDE), (None, Verdict.NOT_RUN)],
)
def test_the_verdict_is_the_bands(ours: Value | None, verdict: Verdict) -> None:
    assert figure().verdict(ours) is verdict


def test_a_figure_that_is_calibrated_on_its_own_number_is_never_a_success() -> None:
    perfect = figure(calibrated_on=(SPEED,))
    assert perfect.verdict(1.5) is Verdict.CALIBRATION
    assert perfect.verdict(9.9) is Verdict.CALIBRATION


def test_an_equal_reference_made_elsewhere_is_the_same_number() -> None:
    again = figure(calibrated_on=(type(SPEED)(SPEED.paper, "2", "speed"),))
    assert again.verdict(1.5) is Verdict.CALIBRATION


def test_a_figure_calibrated_on_others_may_be_a_success() -> None:
    assert figure(calibrated_on=(PEAK,)).verdict(1.5) is Verdict.INSIDE


def test_ours_must_give_the_digits_of_what_was_worked_out_besides_the_band() -> None:
    both = figure(band=Near(0.1), worked_out="1.480")
    assert both.verdict(1.4804) is Verdict.INSIDE
    assert both.verdict(1.5) is Verdict.OUTSIDE


def test_without_a_published_number_what_was_worked_out_decides() -> None:
    assert figure(published="", worked_out="16").verdict(16) is Verdict.INSIDE
    assert figure(published="", worked_out="16").verdict(15) is Verdict.OUTSIDE
    assert figure(published="", worked_out="12 28").verdict("12 28") is Verdict.INSIDE
    assert figure(published="", worked_out="12 28").verdict("28 12") is Verdict.OUTSIDE


def test_a_figure_that_is_compared_with_nothing_is_refused() -> None:
    with pytest.raises(InvariantError, match="compared with nothing"):
        figure(published="", note="bars without labels")


@pytest.mark.parametrize(
    ("ours", "shown"), [(1.49999, "1.500 ms"), (7200, "7,200 ms"), ("12 28", "12 28"), (1234.5678, "1,234.568 ms")]
)
def test_our_number_has_a_digit_more_than_those_beside_it(ours: Value, shown: str) -> None:
    assert figure(unit=" ms").shown(ours) == shown


def test_words_have_no_unit() -> None:
    worse = figure(published="worse", band=Between(high=0.5), unit="x")
    assert worse.printed(worse.published) == "worse"
    assert worse.shown(0.25) == "0.250x"


def test_several_seeds_are_judged_by_their_mean() -> None:
    outcome = Outcome(figure(band=Near(0.1)), Sampled((1.4, 1.6)))
    assert outcome.ours == pytest.approx(1.5)
    assert outcome.verdict is Verdict.INSIDE
    assert outcome.json_object()["runs"] == [1.4, 1.6]


def test_what_was_not_run_has_a_reason_and_no_evidence() -> None:
    outcome = Outcome(figure(evidence=Evidence.SIMULATED), NotRun("needs a GPU"))
    assert (outcome.ours, outcome.reason, outcome.verdict) == (None, "needs a GPU", Verdict.NOT_RUN)
    assert outcome.evidence is Evidence.NOT_RUN
    found = outcome.json_object()
    assert (found["evidence"], found["verdict"], found["ours"], found["band"]) == ("not run", "not run", None, None)
