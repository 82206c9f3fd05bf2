"""Case: figures of a paper that are answered together.

Owns the pairing of plans with answers, and the refusal of a case whose calibration could pass as a success.
Invariant: every figure of a case has exactly one answer, a number or a reason; no figure is a success in a case that
calibrates on its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from plait.core.errors import InvariantError
from plait.reproduce.figure import Answer, Figure, Outcome, Paper, Verdict

SCHEMA = "plait.reproduce/1"

Answers: TypeAlias = Mapping[str, Answer]
"""By the figure's name."""


@dataclass(frozen=True, slots=True)
class Case:
    """Figures, and the function that works out ours."""

    id: str
    title: str
    paper: Paper
    figures: tuple[Figure, ...]
    work_out: Callable[[], Answers]

    def __post_init__(self) -> None:
        names = [figure.name for figure in self.figures]
        if len(set(names)) != len(names):
            raise InvariantError(f"case {self.id} has two figures of one name")
        used = {reference for figure in self.figures for reference in figure.calibrated_on}
        for figure in self.figures:
            if figure.reference in used and figure.reference not in figure.calibrated_on:
                raise InvariantError(
                    f"case {self.id} calibrates on {figure.reference}, so its figure {figure.name!r} cannot be a "
                    f"success; name it in that figure's calibrated_on"
                )


@dataclass(frozen=True, slots=True)
class CaseReport:
    case: Case
    outcomes: tuple[Outcome, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(outcome.verdict is verdict for outcome in self.outcomes)

    def json_object(self) -> dict[str, object]:
        case = self.case
        return {
            "case": case.id,
            "title": case.title,
            "paper": {"name": case.paper.name, "venue": case.paper.venue, "doi": case.paper.doi},
            "figures": [outcome.json_object() for outcome in self.outcomes],
        }


def run_case(case: Case) -> CaseReport:
    answers = case.work_out()
    planned = [figure.name for figure in case.figures]
    if set(answers) != set(planned):
        raise InvariantError(f"case {case.id}: answers and figures differ: {sorted(set(answers) ^ set(planned))}")
    return CaseReport(case, tuple(Outcome(figure, answers[figure.name]) for figure in case.figures))


def json_object(reports: Sequence[CaseReport]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "cases": [report.json_object() for report in reports],
        "verdicts": {str(verdict): sum(report.count(verdict) for report in reports) for verdict in Verdict},
    }
