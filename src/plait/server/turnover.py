"""Turnover: how soon there will be room for whoever finds none.

Owns the mean time that answers take, from one that is let in to its end, waiting included. Lets nobody in.
Invariant: a forecast is never below zero, and without any answer that has ended it is `FIRST_GUESS_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_GUESS_S = 1.0
NEW_PART = 0.1
"""Of the mean, the answer that ended last; choices of one request end together and count as one."""


class Turnover:
    """`now`: seconds on any clock that does not go back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._mean_s: float | None = None

    @contextmanager
    def answer(self) -> Iterator[None]:
        """One is under way."""
        began_s = self._now()
        try:
            yield
        finally:
            took_s = self._now() - began_s
            self._mean_s = took_s if self._mean_s is None else self._mean_s + NEW_PART * (took_s - self._mean_s)

    def wait_s(self, num_lacking: int, num_open: int) -> float:
        """Until so many of those that are under way have ended: one ends every `mean / num_open` seconds."""
        if self._mean_s is None or num_open < 1:
            return FIRST_GUESS_S
        return self._mean_s * min(num_lacking, num_open) / num_open
