"""Scenarios in Markdown: sections with tables, as a reader sees them.

Owns the reading: a second-level heading begins a scenario, its tables are what was given and what is expected, prose is
for people. Knows no engine.
Invariant: a table is read whole or refused; a line that looks like a table row and is none is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` are the cells of each line, as many as there are columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def dicts(self) -> list[dict[str, str]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def text(self) -> str:
        """The table as it would be written, columns aligned."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.columns))]
        written = [_row(line, widths) for line in lines]
        return "\n".join([written[0], _row(["-" * width for width in widths], widths), *written[1:]])


@dataclass(frozen=True, slots=True)
class Scenario:
    title: str
    tables: tuple[Table, ...]


def read_scenarios(path: Path) -> list[Scenario]:
    """The scenarios of a file, in order. A title may be used once."""
    found: list[Scenario] = []
    for section in f"\n{path.read_text(encoding='utf-8')}".split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        found.append(Scenario(title.strip(), tuple(_tables(body, f"{path.name}, {title.strip()}"))))
    titles = [scenario.title for scenario in found]
    if len(set(titles)) != len(titles):
        raise ValueError(f"{path.name} has two scenarios with the same title: {sorted(titles)}")
    return found


def _tables(body: str, place: str) -> list[Table]:
    blocks = "\n".join(line if line.startswith("|") else "" for line in body.splitlines()).split("\n\n")
    return [_table(block.strip().splitlines(), place) for block in blocks if block.strip()]


def _table(lines: list[str], place: str) -> Table:
    columns, *rows = [tuple(cell.strip() for cell in line.strip().strip("|").split("|")) for line in lines]
    if not rows or any(set(cell) - set("-: ") or not cell for cell in rows[0]):
        raise ValueError(f"{place}: no line of dashes below {lines[0]!r}")
    for line, row in zip(lines[2:], rows[1:], strict=True):
        if len(row) != len(columns):
            raise ValueError(f"{place}: {len(row)} cells for {len(columns)} columns in {line!r}")
    return Table(columns, tuple(rows[1:]))


def _row(cells: tuple[str, ...] | list[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
