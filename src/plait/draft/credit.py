"""Credit: what drafts may cost before they have brought as much.

Owns the account of a scheduler that has prices: every step with drafts is a bet, settled by what was accepted. The
limits are those of `plait.draft.depth.PricedDepth`, which has no prices and measures.
Invariant: at prices, bets lose at most `LOSS_SHARE` of the time in decode steps, and `FIRST_CREDIT_STEPS` of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.draft.depth import FIRST_CREDIT_STEPS, LOSS_SHARE, MOST_CREDIT_STEPS


@dataclass(frozen=True, slots=True)
class Bet:
    """A step with drafts, as priced. Worths: seconds of work by second, `plait.sched.multiplex.drafting`."""

    seconds: float
    """Of the step; of all units, if it has a share."""
    plain_worth: float
    """Of what would have been done without."""
    base_worth: float
    """If no draft is right."""
    token_worth: float
    """Of each that is, on top."""

    def gain_s(self, num_accepted: float) -> float:
        """Seconds of work, below 0 if the step lost."""
        return self.seconds * (self.base_worth + self.token_worth * num_accepted - self.plain_worth)


class Credit:
    """Of one scheduler."""

    def __init__(self) -> None:
        self._seconds: float | None = None
        """None: no decode step has ended."""

    @property
    def seconds(self) -> float:
        """That may be lost."""
        return self._seconds or 0.0

    def allows(self, bet: Bet) -> bool:
        return self._seconds is not None and -bet.gain_s(0) <= self._seconds

    def settle(self, seconds: float, bet: Bet | None, num_accepted: int) -> None:
        """A decode step ended that is priced at so many seconds."""
        known = FIRST_CREDIT_STEPS * seconds if self._seconds is None else self._seconds
        gain_s = 0.0 if bet is None else bet.gain_s(num_accepted)
        self._seconds = min(known + LOSS_SHARE * seconds + gain_s, max(known, MOST_CREDIT_STEPS * seconds))
