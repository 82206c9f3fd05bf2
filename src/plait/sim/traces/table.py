"""Table: traces as CSV with a header, in our columns or in those of well-known publications.

Owns the reading of columns by name: ours (`arrival_s,input_tokens,output_tokens`, perhaps `client`), ServeGen's with
`reasoning_tokens`, Azure's `TIMESTAMP,ContextTokens,GeneratedTokens`, BurstGPT's `Request tokens,Response tokens`, and
files of lengths alone. Other columns may be there.
Invariant: times never go back; a line that cannot be used is an error with its number.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.fields import ARRIVAL, MILLISECONDS, OUTPUT, PROMPT, moment, named, needed, tokens, word
from plait.sim.traces.lines import AS_SURROGATES, MAX_LINE, Place, bounded, opened
from plait.sim.traces.request import TraceRequest

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


def is_table(head: str) -> bool:
    first = head.lstrip().split("\n", 1)[0]
    columns = [column.strip().strip('"') for column in first.split(",")]
    return len(columns) > 1 and any(column in PROMPT for column in columns)


def read_table(path: Path) -> Iterator[TraceRequest]:
    """The requests of a CSV file, one at a time; times are as in the file."""
    before = 0.0
    with opened(path, AS_SURROGATES) as file:
        csv.field_size_limit(MAX_LINE)
        reader = csv.DictReader(bounded(file, path), skipinitialspace=True)
        try:
            names = _columns(reader.fieldnames or (), Place(path, 1))
            for fields in reader:
                place = Place(path, reader.line_num)
                request = _request(fields, names, place)
                if request.at_s is not None:
                    if request.at_s < before:
                        shown = str(fields[names[0] or ""])[:40]
                        raise UsageError(
                            f"{place}: {names[0]} {shown} lies before the line above; sort the trace by time"
                        )
                    before = request.at_s
                yield request
        except csv.Error as error:
            raise UsageError(f"{path}, line {reader.line_num + 1} cannot be read as CSV: {error}") from None


def _columns(columns: object, place: Place) -> tuple[str | None, str, str]:
    found = dict.fromkeys(columns) if isinstance(columns, list | tuple) else {}
    for names, wanted in ((PROMPT, COLUMNS[1]), (OUTPUT, COLUMNS[2])):
        if named(found, names) is None:
            raise UsageError(
                f"{place}: column {wanted} is missing; a trace needs {','.join(COLUMNS)}, or the last two and --rate"
            )
    return named(found, (*ARRIVAL, *MILLISECONDS)), needed(found, PROMPT, place), needed(found, OUTPUT, place)


def _request(fields: Mapping[str, object], names: tuple[str | None, str, str], place: Place) -> TraceRequest:
    arrival, prompt, output = names
    return TraceRequest(
        None if arrival is None else moment(fields, arrival, place),
        tokens(fields, prompt, place),
        tokens(fields, output, place),
        client=word(fields, "client"),
    )
