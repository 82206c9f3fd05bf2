"""Clocks: the only thing that waits, and the only source of time.

Owns `RealClock`, which serves, and `SimClock`, under which the same engine replays a day in seconds. Nothing else in
Plait may read the operating system's time or sleep.
Invariant: `now` never goes back, and `wait` returns only when a source is ready or `until` has come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from plait.core.errors import InvariantError


class WaitSource(Protocol):
    """Something that can become ready: an inbox with arrivals, an executor with finished steps."""

    def ready(self) -> bool:
        """Whether something is there to be taken now."""

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, each time the source may have become ready."""

    def next_s(self) -> float | None:
        """When the source becomes ready by itself, on a simulated clock; None: not before someone acts."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds; the origin is arbitrary but fixed."""

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        """Return when a source is ready or at `until`, whichever comes first."""


class RealClock:
    """Monotonic wall time. Waits on one event that every source sets."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._subscribed: list[WaitSource] = []

    def now(self) -> float:
        return time.monotonic()

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        for source in sources:
            if not any(source is known for known in self._subscribed):
                self._subscribed.append(source)
                source.subscribe(self._woken.set)
        while True:
            # Clear before looking: a source that becomes ready after the look sets the event again and ends the wait
            # below.
            self._woken.clear()
            if any(source.ready() for source in sources):
                return
            left_s = None if until is None else until - self.now()
            if left_s is not None and left_s <= 0:
                return
            # Nobody can wait longer than TIMEOUT_MAX at once; a deadline at infinity is only looked at more often.
            self._woken.wait(None if left_s is None else min(left_s, threading.TIMEOUT_MAX))


class SimClock:
    """Simulated time: waiting jumps to the next moment at which something happens. One thread, deterministic."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        if any(source.ready() for source in sources):
            return
        moments = [moment for source in sources if (moment := source.next_s()) is not None]
        if until is not None:
            moments.append(until)
        if not moments:
            raise InvariantError("simulated time cannot move on: no source will ever become ready")
        self._now_s = max(self._now_s, min(moments))
