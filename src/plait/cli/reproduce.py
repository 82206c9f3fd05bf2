"""Reproduce: `plait reproduce CASE`, published figures beside ours.

Owns the exit code: 1 when a figure falls outside its band. The cases, their answers and their tables are in
`plait.reproduce`.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.cli.streams import show, show_json
from plait.config.option import OptionSources, nearest
from plait.config.reproduce_options import ReproduceOptions
from plait.core.errors import UsageError
from plait.cost.hardware import find_hardware
from plait.reproduce.case import Case, CaseReport, json_object, run_case
from plait.reproduce.catalogue import ALL, Catalogue, catalogue
from plait.reproduce.figure import Verdict
from plait.reproduce.tables import list_lines, list_object, report_lines, summary_line


def run_reproduce(sources: OptionSources) -> int:
    options = sources.read(ReproduceOptions)
    known = catalogue(None if options.hardware is None else find_hardware(options.hardware))
    if options.case is None:
        _list(known.cases, json=options.json)
        return 0
    reports = []
    for case in _chosen(known, options.case):
        reports.append(run_case(case))
        if not options.json:
            _show_report(reports[-1])
    if options.json:
        show_json(json_object(reports))
    else:
        show(summary_line(reports))
    return int(any(report.count(Verdict.OUTSIDE) for report in reports))


def _chosen(known: Catalogue, name: str) -> Sequence[Case]:
    found = known.choose(name)
    if found:
        return found
    names = [*(case.id for case in known.cases), ALL]
    raise UsageError(f"case {name!r} is not known; plait reproduce lists the cases{nearest(name, names)}")


def _list(cases: Sequence[Case], *, json: bool) -> None:
    if json:
        show_json(list_object(cases))
        return
    for line in list_lines(cases):
        show(line)


def _show_report(report: CaseReport) -> None:
    for line in report_lines(report):
        show(line)
    show("")
