"""Trusting intake: takes plans without looking whether they are sound, for simulations that count time.

Owns who has joined, and nothing else of what `plait.exec.intake` knows. The memory's own checks
(`plait.kv.flights`) still see every plan; what is lost is that an executor finds a scheduler's mistake.
Invariant: for sound plans it answers as `Intake` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.ids import LaneId, SeqId
from plait.core.step import Join, StepPlan, StepResult


class TrustingIntake:
    """Stands in for `plait.exec.intake.Intake`."""

    def __init__(self) -> None:
        self._joins: dict[SeqId, Join] = {}

    def submit(self, plan: StepPlan) -> tuple[Join, ...]:
        """The joins of the plan's chunks, in order."""
        for change in plan.roster:
            if isinstance(change, Join):
                self._joins[change.seq] = change
            else:
                del self._joins[change.seq]
        joins = self._joins
        return tuple([joins[chunk.seq] for chunk in plan.chunks])

    def collect(self, results: Sequence[StepResult]) -> None:
        return

    def check_shares(self, shares: Mapping[LaneId, tuple[int, ...]]) -> None:
        return

    def suspend(self, lane: LaneId) -> None:
        return

    def resume(self, lane: LaneId) -> None:
        return
