"""Reproduce: `plait reproduce CASE`, published figures beside ours.

Owns the exit code: 1 when a figure falls outside its band. The cases, their answers and their tables are in
`plait.reproduce`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from json import dumps
from pathlib import Path

from plait.cli.streams import show, show_json
from plait.config.option import OptionSources, nearest
from plait.config.reproduce_options import ReproduceOptions
from plait.core.errors import UsageError
from plait.core.own_file import check_replaceable, check_writable
from plait.cost.hardware import find_hardware
from plait.reproduce.case import Case, json_object, run_case
from plait.reproduce.catalogue import ALL, Catalogue, catalogue
from plait.reproduce.figure import Verdict
from plait.reproduce.tables import list_lines, list_object, report_lines, summary_line

STDOUT = Path("-")
BEGINNING = b'{"schema": "plait.reproduce'
"""Of what may be written over."""


def run_reproduce(sources: OptionSources) -> int:
    options = sources.read(ReproduceOptions)
    if options.json not in (None, STDOUT):
        check_replaceable(options.json, BEGINNING, "--json", "report of plait reproduce")
        check_writable(options.json, "--json")
    known = catalogue(None if options.hardware is None else find_hardware(options.hardware))
    if options.case is None:
        _write(options.json, list_object(known.cases))
        _show(options.json, list_lines(known.cases))
        return 0
    reports = []
    for case in _chosen(known, options.case):
        reports.append(run_case(case))
        _show(options.json, [*report_lines(reports[-1]), ""])
    _show(options.json, [summary_line(reports)])
    _write(options.json, json_object(reports))
    return int(any(report.count(Verdict.OUTSIDE) for report in reports))


def _show(path: Path | None, lines: Iterable[str]) -> None:
    """Tables are for people: there are none where JSON goes to standard output."""
    if path != STDOUT:
        for line in lines:
            show(line)


def _write(path: Path | None, value: Mapping[str, object]) -> None:
    if path is None:
        return
    if path == STDOUT:
        show_json(value)
        return
    try:
        path.write_text(f"{dumps(value, allow_nan=False)}\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json {path} cannot be written: {error.strerror}; choose another file") from None


def _chosen(known: Catalogue, name: str) -> Sequence[Case]:
    found = known.choose(name)
    if found:
        return found
    names = [*(case.id for case in known.cases), ALL]
    raise UsageError(f"case {name!r} is not known; plait reproduce lists the cases{nearest(name, names)}")
