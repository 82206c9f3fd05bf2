"""Figure: one published number as an experiment, and what came of it.

Owns the plan (`Figure`: what is published, how close counts, what the answer may rest on) and the verdict on an
answer. Computes no number of its own.
Invariant: a number that was used to calibrate is never a success: its own figure gets the verdict `calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TypeAlias

from plait.core.errors import InvariantError
from plait.reproduce.band import Band, Equal, Printed, Value, decimals_of, is_number

_SHOWN_DECIMALS = 3
"""Of our number where nothing that is printed says how many."""


class Evidence(StrEnum):
    """What our number is made of."""

    EXACT = "exact"
    """Arithmetic on published inputs; the same everywhere."""
    REAL_CPU = "real-cpu"
    """Measured on the processor of a machine."""
    SIMULATED = "simulated"
    """What our model of a device says: a price, or a whole run of the engine in simulated time."""
    NOT_RUN = "not run"


class Verdict(StrEnum):
    INSIDE = "inside"
    OUTSIDE = "outside"
    CALIBRATION = "calibration"
    """Used to set the model, or set to be met; how well it is met says nothing."""
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Paper:
    name: str
    venue: str
    doi: str


BULLET = Paper("Bullet", "ASPLOS 2026", "10.1145/3779212.3790135")
MUXWISE = Paper("MuxWise", "ASPLOS 2026", "10.1145/3779212.3790236")
BLENDSERVE = Paper("BlendServe", "ASPLOS 2026", "10.1145/3779212.3790133")
JENGA = Paper("Jenga", "SOSP 2025", "10.1145/3731569.3764823")
PLAIT = Paper("Plait", "no paper: what we expect ourselves", "")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a published number stands. Two figures about the same number have equal references."""

    paper: Paper
    section: str
    what: str

    def __str__(self) -> str:
        return f"{self.paper.name} {self.section}, {self.what}"


@dataclass(frozen=True, slots=True)
class Figure:
    """The plan of one experiment, written before it runs."""

    name: str
    """Unique in its case."""
    reference: Reference
    published: str
    """As printed, without the unit; empty if the paper states what follows but prints no number for it."""
    band: Band = Printed()  # noqa: RUF009 - a value without state
    unit: str = ""
    evidence: Evidence = Evidence.EXACT
    worked_out: str = ""
    """The same number worked out from the paper's formulas by hand, apart from Plait's code. Ours must give its digits
    besides lying in the band; without a published number it is all that ours is compared with.
    """
    calibrated_on: tuple[Reference, ...] = ()
    """Published numbers that set the model which gives ours. With its own among them, a figure is no success."""
    note: str = ""
    """What is unknown, or why numbers differ."""

    def __post_init__(self) -> None:
        if not self.published and not self.worked_out:
            raise InvariantError(f"figure {self.name!r} is compared with nothing, so it would always be a success")

    def verdict(self, ours: Value | None) -> Verdict:
        if ours is None:
            return Verdict.NOT_RUN
        if self.reference in self.calibrated_on:
            return Verdict.CALIBRATION
        inside = not self.published or self.band.holds(ours, self.published)
        if self.worked_out:
            inside = inside and _same(ours).holds(ours, self.worked_out)
        return Verdict.INSIDE if inside else Verdict.OUTSIDE

    def band_words(self, ours: Value) -> str:
        """Of the number that ours is compared with."""
        return self.band.words if self.published else _same(ours).words

    def printed(self, text: str) -> str:
        """What a paper printed, with the unit if it is a number."""
        return f"{text}{self.unit}" if is_number(text) else text or "-"

    def shown(self, ours: Value) -> str:
        """Our number with one digit more than those it is compared with."""
        if isinstance(ours, str):
            return ours
        if isinstance(ours, int):
            return f"{ours:,}{self.unit}"
        printed = [decimals_of(text) + 1 for text in (self.published, self.worked_out) if is_number(text)]
        return f"{ours:,.{max(printed, default=_SHOWN_DECIMALS)}f}{self.unit}"


def _same(ours: Value) -> Band:
    """The band of what was worked out by hand."""
    return Equal() if isinstance(ours, str | int) else Printed()


@dataclass(frozen=True, slots=True)
class NotRun:
    """In place of a number."""

    reason: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """A number of several runs that differ in their seed alone; at least one."""

    runs: tuple[float, ...]
    by_median: bool = False
    """For ratios that are large without a meaning where their denominator is nearly nothing."""

    @property
    def mean(self) -> float:
        return sum(self.runs) / len(self.runs)

    @property
    def center(self) -> float:
        return median(self.runs) if self.by_median else self.mean

    @property
    def center_name(self) -> str:
        return "median" if self.by_median else "mean"


@dataclass(frozen=True, slots=True)
class Measured:
    """A number that a real machine gave."""

    value: float
    where: str
    """Machine and day."""


Answer: TypeAlias = Value | Sampled | Measured | NotRun


@dataclass(frozen=True, slots=True)
class Outcome:
    """A figure with what came of it."""

    figure: Figure
    answer: Answer

    @property
    def ours(self) -> Value | None:
        """What the band is laid on: of several runs the mean, or the median where they say so."""
        match self.answer:
            case NotRun():
                return None
            case Sampled():
                return self.answer.center
            case Measured():
                return self.answer.value
            case _:
                return self.answer

    @property
    def reason(self) -> str:
        """Why there is no number."""
        return self.answer.reason if isinstance(self.answer, NotRun) else ""

    @property
    def runs(self) -> tuple[float, ...]:
        return self.answer.runs if isinstance(self.answer, Sampled) else ()

    @property
    def where(self) -> str:
        return self.answer.where if isinstance(self.answer, Measured) else ""

    @property
    def verdict(self) -> Verdict:
        return self.figure.verdict(self.ours)

    @property
    def evidence(self) -> Evidence:
        return Evidence.NOT_RUN if self.ours is None else self.figure.evidence

    def json_object(self) -> dict[str, object]:
        figure = self.figure
        return {
            "figure": figure.name,
            "section": figure.reference.section,
            "published": figure.published or None,
            "worked_out": figure.worked_out or None,
            "ours": self.ours,
            "runs": list(self.runs) or None,
            "measured_on": self.where or None,
            "unit": figure.unit.strip(),
            "band": None if self.ours is None else figure.band_words(self.ours),
            "evidence": str(self.evidence),
            "calibrated_on": [str(reference) for reference in figure.calibrated_on],
            "verdict": str(self.verdict),
            "reason": self.reason or None,
            "note": figure.note or None,
        }
