"""Watchdog: how long every step in flight could have run by now.

Owns that time per lane. A step behind another, on a lane that is suspended or has no share, is not running and costs
nothing. Judges only; what to do about a hang is the engine's business.
Invariant: at most one step of a lane is timed, the oldest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.core.ids import LaneId, StepId
from plait.core.step import StepPlan


@dataclass(slots=True)
class _Lane:
    queue: dict[StepId, StepPlan] = field(default_factory=dict)
    """Steps in flight, oldest first."""
    spent_s: float = 0.0
    """How long the oldest could run before `since_s`."""
    since_s: float = 0.0
    is_suspended: bool = False
    has_share: bool = True
    """Taken for granted until somebody assigns: executors begin with a lane that can run."""

    @property
    def can_run(self) -> bool:
        return bool(self.queue) and self.has_share and not self.is_suspended

    def ran_s(self, now: float) -> float:
        return self.spent_s + (now - self.since_s if self.can_run else 0.0)

    def pass_time(self, now: float) -> None:
        """Before anything changes at `now`."""
        self.spent_s, self.since_s = self.ran_s(now), now


class Watchdog:
    """`limit_s` for any step; `limit_s_per_token` where that is more."""

    def __init__(self, limit_s: float, limit_s_per_token: float) -> None:
        self._limit_s = limit_s
        self._limit_s_per_token = limit_s_per_token
        self._lanes: dict[LaneId, _Lane] = {}
        self._limits_s: dict[StepId, float] = {}
        """Of the steps in flight; asked for at every tick."""

    def submitted(self, plan: StepPlan, now: float) -> None:
        lane = self._lane(plan.lane, now)
        lane.queue[plan.step] = plan
        num_tokens = sum([chunk.num_tokens for chunk in plan.chunks])
        self._limits_s[plan.step] = max(self._limit_s * plan.num_steps, self._limit_s_per_token * num_tokens)

    def collected(self, step: StepId, now: float) -> None:
        for lane in self._lanes.values():
            if step in lane.queue:
                if step == next(iter(lane.queue)):
                    lane.spent_s, lane.since_s = 0.0, now
                del lane.queue[step], self._limits_s[step]

    def assigned(self, shares: Mapping[LaneId, tuple[int, ...]], now: float) -> None:
        for lane_id, units in shares.items():
            self._lane(lane_id, now).has_share = bool(units)

    def suspended(self, lane: LaneId, now: float) -> None:
        self._lane(lane, now).is_suspended = True

    def resumed(self, lane: LaneId, now: float) -> None:
        self._lane(lane, now).is_suspended = False

    def overdue(self, now: float) -> str | None:
        """What is known of the first step that should have ended, or None."""
        for lane_id, lane in self._lanes.items():
            plan = next(iter(lane.queue.values()), None)
            if plan is None or not lane.can_run or now < self._due_s(lane, plan):
                continue
            ran_s, limit_s = lane.ran_s(now), self._limits_s[plan.step]
            chunks = ", ".join(f"sequence {chunk.seq} [{chunk.start}, {chunk.end})" for chunk in plan.chunks)
            return (
                f"step {plan.step} on lane {lane_id} has run for {ran_s:.0f} s, its limit is {limit_s:.0f} s; taken "
                f"for a hang. It computes {chunks}; {len(lane.queue) - 1} waiting behind it"
            )
        return None

    def wake_at(self) -> float | None:
        """When the first step will be overdue if nothing changes."""
        due = [self._due_s(lane, next(iter(lane.queue.values()))) for lane in self._lanes.values() if lane.can_run]
        return min(due, default=None)

    def _lane(self, lane_id: LaneId, now: float) -> _Lane:
        lane = self._lanes.setdefault(lane_id, _Lane())
        lane.pass_time(now)
        return lane

    def _due_s(self, lane: _Lane, plan: StepPlan) -> float:
        return lane.since_s + self._limits_s[plan.step] - lane.spent_s
