"""Report: what a measure found beside what it should reach.

Owns the rows of the table and the JSON object. Knows no measure. Invariant: a bar that was missed says so in the table.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Line:
    """A figure. `at_least` and `at_most` are its bars; without either it is reported only."""

    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def is_missed(self) -> bool:
        low = self.at_least is not None and self.value < self.at_least
        return low or (self.at_most is not None and self.value > self.at_most)

    def text(self) -> str:
        bars = [f">= {self.at_least:.3g}"] if self.at_least is not None else []
        bars += [f"<= {self.at_most:.3g}"] if self.at_most is not None else []
        verdict = "" if not bars else "MISSED" if self.is_missed else "ok"
        number = f"{self.value:.4g} {self.unit}".rstrip()
        return f"  {self.what:<58}{number:>14}  {' and '.join(bars):<10}{verdict:<8}{self.note}".rstrip()


@dataclass(slots=True)
class Section:
    """One measure. `detail` is what its lines were made of, for the JSON object."""

    name: str
    title: str
    lines: list[Line] = field(default_factory=list)
    detail: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, what: str, value: float, **bars: float | str) -> None:
        self.lines.append(Line(what, value, **bars))  # type: ignore[arg-type]

    def text(self) -> str:
        missed = sum(line.is_missed for line in self.lines)
        head = f"{self.name}  {self.title}  ({self.seconds:.0f} s" + (f", {missed} missed)" if missed else ")")
        return "\n".join([head, *(line.text() for line in self.lines)])

    def json_object(self) -> dict[str, object]:
        lines = [{**asdict(line), "missed": line.is_missed} for line in self.lines]
        return {"name": self.name, "title": self.title, "seconds": self.seconds, "lines": lines, "detail": self.detail}
