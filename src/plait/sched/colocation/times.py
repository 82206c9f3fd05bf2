"""Times: how long steps take by the number of their tokens, learned from those that were run.

Owns a fit of seconds to a step and its tokens that forgets. For who has no prices, and only as good as a guess about
the next step has to be. Invariant: more tokens never take less.
"""

from __future__ import annotations

KEEPS = 0.98
"""Of the weight of earlier steps, for each new one."""


class StepTimes:
    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0

    def took(self, num_tokens: int, seconds: float) -> None:
        self._weight = KEEPS * self._weight + 1.0
        self._tokens = KEEPS * self._tokens + num_tokens
        self._seconds = KEEPS * self._seconds + seconds
        self._squares = KEEPS * self._squares + num_tokens * num_tokens
        self._products = KEEPS * self._products + num_tokens * seconds

    @property
    def is_known(self) -> bool:
        return self._tokens > 0

    def line(self) -> tuple[float, float]:
        """Seconds of a step, and of each of its tokens. Where all steps held alike, all is the tokens'."""
        if not self._tokens:
            return 0.0, 0.0
        spread = self._weight * self._squares - self._tokens * self._tokens
        if spread > 1e-3 * self._tokens * self._tokens:
            slope = (self._weight * self._products - self._tokens * self._seconds) / spread
            base = (self._seconds - slope * self._tokens) / self._weight
            if slope >= 0 and base >= 0:
                return base, slope
            if slope < 0:
                return self._seconds / self._weight, 0.0
        return 0.0, self._seconds / self._tokens

    def seconds(self, num_tokens: int) -> float:
        base, slope = self.line()
        return base + slope * num_tokens

    def tokens_within(self, seconds: float, most: int) -> int:
        """Of a step that lasts so long at most; at least one."""
        base, slope = self.line()
        if slope <= 0:
            return most
        return max(1, min(most, int((seconds - base) / slope)))
