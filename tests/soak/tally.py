"""Tally: what a soak did, and what it found.

Owns counts, and the first lines of everything that was not as it must be. Does nothing itself.
Invariant: whatever is compared is counted, so that a soak that compares nothing shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_REPORTED = 20
COUNTED = (
    "rounds",
    "steps",
    "units",
    "cancels",
    "suspends",
    "assigns",
    "aborts",
    "deadlines",
    "preemptions",
    "prefix hits",
    "answers compared",
    "log-probabilities compared",
)


@dataclass(slots=True)
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    """Answers that were not what they are alone, memory that was not given back, faults."""

    def add(self, what: str, count: int = 1) -> None:
        self.counts[what] += count

    def check(self, right: bool, what: str) -> None:
        if not right:
            self.differences.append(what)

    def text(self) -> str:
        return ", ".join(f"{self.counts[what]:,} {what}" for what in COUNTED)

    def reports(self) -> Sequence[str]:
        left = len(self.differences) - MOST_REPORTED
        return [*self.differences[:MOST_REPORTED], *([f"and {left} more"] if left > 0 else [])]

    def numbers(self) -> dict[str, int]:
        counted = {what.replace(" ", "_").replace("-", "_"): self.counts[what] for what in COUNTED}
        return {**counted, "differences": len(self.differences)}
