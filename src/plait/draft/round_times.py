"""Round times: how long steps of a draft model take, and what they are taken to cost before one was made.

Owns the running means of its steps, by rows. Decides nothing.
"""

from __future__ import annotations

from plait.draft.step_times import StepTimes

_FIRST_PART = 0.5
"""Of what the weights' bytes say of a step that was never made: half, so that it is tried, and then is known."""


class RoundTimes:
    """`weight_share`: bytes of the draft model's weights, of the target's."""

    def __init__(self, weight_share: float) -> None:
        self._weight_share = weight_share
        self._times = StepTimes()

    def seconds(self, num_rows: int, target_s: float) -> float:
        """Of one step of so many rows. `target_s`: of such a step of the target."""
        if self._times.is_empty:
            return target_s * self._weight_share * _FIRST_PART
        return self._times.seconds(num_rows)

    def note(self, num_rows: int, seconds: float) -> None:
        self._times.note(num_rows, seconds)
