"""What Bullet's control costs (its section 4.5): times of a processor, which no simulation gives.

Owns the published numbers, so that they are not forgotten, and where ours are measured.
"""

from __future__ import annotations

from plait.reproduce.band import Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BULLET, Evidence, Figure, NotRun, Reference

COSTS = {
    "prediction, mean": ("10.2", 50.0),
    "hand-over of a request's metadata, mean": ("210", 500.0),
    "change of the split, mean": ("4.1", 20.0),
}
"""Microseconds: published, and what is allowed."""
ELSEWHERE = (
    "nothing is measured here; bench/policies.py prints what a decision costs (--decisions) and how long workers take "
    "to notice a change of shares, and a hand-over is no message here but a field of the next plan"
)


def work_out() -> Answers:
    return dict.fromkeys(COSTS, NotRun(ELSEWHERE))


CASE = Case(
    "bullet-control",
    "microseconds of control",
    BULLET,
    tuple(
        Figure(name, Reference(BULLET, "4.5", name), printed, Between(high=most), " us", Evidence.REAL_CPU)
        for name, (printed, most) in COSTS.items()
    ),
    work_out,
)
