"""Cases: every plan has its answer, and none can count a number twice."""

from __future__ import annotations

import json

import pytest
from tests.unit.reproduce.making import PEAK, SPEED, case, figure

from plait.core.errors import InvariantError
from plait.reproduce.case import json_object, run_case
from plait.reproduce.figure import NotRun, Verdict


def test_a_case_that_counts_its_calibration_as_a_success_is_refused() -> None:
    fitted = figure("other", reference=PEAK, calibrated_on=(SPEED,))
    with pytest.raises(InvariantError, match=r"calibrates on Bullet 2, speed, so its figure 'speed' cannot"):
        case((figure(), fitted), {})


def test_it_is_taken_when_the_figure_names_its_own_number() -> None:
    fitted = figure("other", reference=PEAK, calibrated_on=(SPEED,))
    report = run_case(case((figure(calibrated_on=(SPEED,)), fitted), {"speed": 1.5, "other": 1.5}))
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.CALIBRATION, Verdict.INSIDE]


def test_two_figures_of_one_name_are_refused() -> None:
    with pytest.raises(InvariantError, match="two figures of one name"):
        case((figure(), figure()), {})


@pytest.mark.parametrize("answers", [{}, {"speed": 1.5, "more": 2.0}, {"sped": 1.5}])
def test_answers_and_figures_must_be_the_same(answers: dict[str, float]) -> None:
    with pytest.raises(InvariantError, match="differ"):
        run_case(case((figure(),), dict(answers)))


def test_the_json_counts_verdicts_and_holds_no_infinity() -> None:
    others = (figure("a"), figure("b"), figure("c"))
    report = run_case(case(others, {"a": 1.5, "b": 2.0, "c": NotRun("no GPU")}))
    found = json.loads(json.dumps(json_object([report, report]), allow_nan=False))
    assert found["schema"] == "plait.reproduce/1"
    assert found["verdicts"] == {"inside": 2, "outside": 2, "calibration": 0, "not run": 2}
    assert [one["verdict"] for one in found["cases"][0]["figures"]] == ["inside", "outside", "not run"]
