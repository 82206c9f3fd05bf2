"""Finish by: whether a job will have ended when somebody wants it.

Owns the judgement of an estimate against a moment, with room for the estimate's own error. Runs nothing faster: who
serves the lines asks whether it is urgent (`plait.batch.serving`), and the scheduler what that is worth
(`plait.sched.colocation`).
Invariant: nothing is said to be late or in time that an estimate a tenth off could turn round.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

ERROR = 0.1
"""Of the time left: how far an estimate may be off."""


class Outlook(StrEnum):
    UNKNOWN = "unknown"
    """Too little has come to say."""
    IN_TIME = "in_time"
    AT_RISK = "at_risk"
    """It may end later."""
    LATE = "late"
    """It cannot be met, as it goes now."""


def outlook(to_go_s: float, left_s: float | None) -> Outlook:
    """`to_go_s`: until the moment; `left_s`: of work."""
    if to_go_s <= 0:
        return Outlook.LATE
    if left_s is None:
        return Outlook.UNKNOWN
    if left_s * (1 - ERROR) > to_go_s:
        return Outlook.LATE
    return Outlook.AT_RISK if left_s * (1 + ERROR) > to_go_s else Outlook.IN_TIME


class FinishBy:
    """One job's. `due_s` on the clock of `now`; `changed` is told of every new outlook, with the seconds left and to
    go.
    """

    def __init__(
        self,
        due_s: float,
        now: Callable[[], float],
        changed: Callable[[Outlook, float | None, float], None] = lambda outlook, left_s, to_go_s: None,
    ) -> None:
        self.due_s = due_s
        self._now = now
        self._changed = changed
        self.outlook = Outlook.UNKNOWN

    @property
    def is_urgent(self) -> bool:
        """From any thread."""
        return self.outlook in (Outlook.AT_RISK, Outlook.LATE)

    def judge(self, left_s: float | None) -> None:
        to_go_s = self.due_s - self._now()
        found = outlook(to_go_s, left_s)
        if found is not self.outlook and found is not Outlook.UNKNOWN:
            self.outlook = found
            self._changed(found, left_s, to_go_s)
