"""Demand: what online sequences held lately, and so what is kept free for the next burst of them.

Owns samples of the last ten minutes, one for each second. Holds nothing itself.
Invariant: what is kept is at most `MOST_KEPT` of what there is, so that offline work is never shut out by a rule.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 600.0
QUANTILE = 0.99
MOST_KEPT = 0.75


class OnlineDemand:
    """Of one quantity: tokens of memory, or rows. `capacity` is all there is; `one_more`: of a largest newcomer."""

    def __init__(self, capacity: int, one_more: int) -> None:
        self._most = int(MOST_KEPT * capacity)
        self._one_more = one_more
        self._seconds: deque[tuple[int, int]] = deque()
        """(second, the most that was held in it), ascending; seconds that are missing held what the last one did."""
        self._quantile: int | None = 0
        """Over the seconds that have ended; None: not worked out yet. Most of the time nobody asks, and a simulation of
        hours has thousands of seconds.
        """

    def sample(self, held: int, now: float) -> None:
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            if held > self._seconds[-1][1]:
                self._seconds[-1] = (second, held)
            return
        if self._seconds:
            # Seconds that have ended count from now on.
            while len(self._seconds) > 1 and self._seconds[1][0] <= second - WINDOW_S:
                self._seconds.popleft()
            self._quantile = None
        self._seconds.append((second, held))

    @property
    def kept(self) -> int:
        """For those who are online and those who may come: p99 of the window, and one newcomer."""
        if self._quantile is None:
            self._quantile = self._of_window(self._seconds[-1][0])
        return min(self._most, self._quantile + self._one_more)

    def _of_window(self, second: int) -> int:
        """Of the seconds before this one."""
        weights: list[tuple[int, int]] = []
        until = second
        for start, held in reversed(self._seconds):
            first = max(start, int(second - WINDOW_S))
            weights.append((held, until - first))
            until = first
        left = math.ceil((1 - QUANTILE) * sum(weight for _, weight in weights))
        for held, weight in sorted(weights, reverse=True):
            left -= weight
            if left <= 0:
                return held
        return 0
