"""Figures and cases for tests, with everything that a test does not care about filled in."""

from __future__ import annotations

from plait.reproduce.band import Band, Printed
from plait.reproduce.case import Case
from plait.reproduce.figure import BULLET, Answer, Evidence, Figure, Reference

SPEED = Reference(BULLET, "2", "speed")
PEAK = Reference(BULLET, "3", "peak")


def figure(
    name: str = "speed",
    published: str = "1.50",
    band: Band | None = None,
    *,
    reference: Reference = SPEED,
    worked_out: str = "",
    calibrated_on: tuple[Reference, ...] = (),
    evidence: Evidence = Evidence.EXACT,
    unit: str = "",
    note: str = "",
) -> Figure:
    return Figure(
        name,
        reference,
        published,
        Printed() if band is None else band,
        unit,
        evidence,
        worked_out=worked_out,
        calibrated_on=calibrated_on,
        note=note,
    )


def case(figures: tuple[Figure, ...], answers: dict[str, Answer], case_id: str = "one") -> Case:
    return Case(case_id, "speeds", BULLET, figures, lambda: answers)
