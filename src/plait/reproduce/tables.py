"""Tables: cases and their outcomes as lines for people, the same in a terminal and in a page.

Owns words and columns. Works out nothing.
Invariant: equal reports give equal lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from plait.reproduce.case import Case, CaseReport
from plait.reproduce.figure import Evidence, Outcome, Reference, Sampled, Verdict

WIDTH = 100
LIST_SCHEMA = "plait.reproduce.list/1"
_HEADS = ("figure", "published", "worked out", "ours", "band", "evidence", "verdict")
_NAMED = 3
"""Figures that a note names; of more it names the first."""
_LEFT = ("figure", "band", "evidence", "verdict")


def list_lines(cases: Sequence[Case]) -> list[str]:
    """One line for each case: its name, how many figures of which evidence are planned, and what it is about."""
    rows = [(case.id, case.paper.name, str(len(case.figures)), _kinds(case), case.title) for case in cases]
    return _aligned(("case", "paper", "figures", "evidence", "about"), rows, right=("figures",))


def list_object(cases: Sequence[Case]) -> dict[str, object]:
    """The same for programs."""
    return {
        "schema": LIST_SCHEMA,
        "cases": [
            {"case": case.id, "paper": case.paper.name, "figures": len(case.figures), "title": case.title}
            for case in cases
        ],
    }


def report_lines(report: CaseReport) -> list[str]:
    case = report.case
    lines = wrap(f"{case.id}: {case.paper.name} ({case.paper.venue}), {case.title}", WIDTH)
    rows = [_row(outcome) for outcome in report.outcomes]
    kept = [
        place
        for place, head in enumerate(_HEADS)
        if head not in ("published", "worked out") or any(row[place] != "-" for row in rows)
    ]
    heads = [_HEADS[place] for place in kept]
    table = [[row[place] for place in kept] for row in rows]
    right = [head for head in heads if head not in _LEFT]
    return [*lines, "", *_aligned(heads, table, right), *_calibration_lines(report.outcomes), *_note_lines(report)]


def summary_line(reports: Sequence[CaseReport]) -> str:
    counts = {verdict: sum(report.count(verdict) for report in reports) for verdict in Verdict}
    total = sum(counts.values())
    return f"{total} figures: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _kinds(case: Case) -> str:
    return ", ".join(str(kind) for kind in Evidence if any(figure.evidence is kind for figure in case.figures))


def _row(outcome: Outcome) -> tuple[str, ...]:
    figure = outcome.figure
    return (
        figure.name,
        figure.printed(figure.published),
        figure.printed(figure.worked_out),
        "-" if outcome.ours is None else figure.shown(outcome.ours),
        "-" if outcome.ours is None else figure.band_words(outcome.ours),
        str(outcome.evidence),
        "-" if outcome.verdict is Verdict.NOT_RUN else str(outcome.verdict),
    )


def _calibration_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """For each set of inputs, which figures rest on them."""
    groups: dict[tuple[Evidence, tuple[Reference, ...]], list[str]] = {}
    for outcome in outcomes:
        figure = outcome.figure
        if outcome.ours is not None and (figure.evidence is Evidence.SIMULATED or figure.calibrated_on):
            groups.setdefault((figure.evidence, figure.calibrated_on), []).append(figure.name)
    lines: list[str] = []
    for (evidence, references), names in groups.items():
        inputs = "; ".join(map(str, references)) or "nothing"
        lines += _bullet(f"{_listed(names)}: {evidence} (calibrated on: {inputs})")
    return lines and ["", *lines]


def _note_lines(report: CaseReport) -> list[str]:
    """Equal notes are written once, under all names that they belong to."""
    notes: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        texts = (
            _runs_text(outcome),
            f"measured on {outcome.where}" if outcome.where else "",
            f"not run: {outcome.reason}" if outcome.reason else "",
            outcome.figure.note,
        )
        for text in texts:
            if text:
                notes.setdefault(text, []).append(outcome.figure.name)
    lines = [line for text, names in notes.items() for line in _bullet(f"{_listed(names)}: {text}")]
    return lines and ["", *lines]


def _runs_text(outcome: Outcome) -> str:
    if len(outcome.runs) < 2 or not isinstance(outcome.answer, Sampled):
        return ""
    low, high = (outcome.figure.shown(edge) for edge in (min(outcome.runs), max(outcome.runs)))
    return f"{outcome.answer.center_name} of {len(outcome.runs)} seeds, {low} to {high}"


def _listed(names: Sequence[str]) -> str:
    few = names if len(names) <= _NAMED else names[:1]
    more = len(names) - len(few)
    return "; ".join(few) + (f" and {more} more" if more else "")


def _bullet(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False)


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[str]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    to_right = [head in right for head in heads]

    def line(cells: Sequence[str]) -> str:
        found = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, to_right, strict=True)
        ]
        return "  ".join(found).rstrip()

    return [line(heads), *(line(row) for row in rows)]
