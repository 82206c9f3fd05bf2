"""Clocks: the only thing that waits, and the only source of time.

Owns `RealClock`, which serves, and `SimClock`, under which the same engine replays a day in seconds. Nothing else in
Plait may read the operating system's time or sleep.
Invariant: `now` never goes back, and `wait` returns only when a source is ready or `until` has come.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time
from contextlib import suppress
from typing import Protocol

from plait.core.errors import InvariantError


class WaitSource(Protocol):
    """Something that can become ready: an inbox with arrivals, an executor with finished steps."""

    def ready(self) -> bool:
        """Whether something is there to be taken now."""

    def subscribe(self, wake: Wake) -> None:
        """Call `wake`, from any thread, each time the source may have become ready. A native thread, which must not
        wait for Python, writes to its descriptor instead.
        """

    def next_s(self) -> float | None:
        """When the source becomes ready by itself, on a simulated clock; None: not before someone acts."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds; the origin is arbitrary but fixed."""

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        """Return when a source is ready or at `until`, whichever comes first."""


class Wake:
    """Ends a real clock's wait when it is called, or when eight bytes are written to `fd`.

    Owns its descriptors: they live as long as any source keeps the wake, so nobody writes to what is somebody else's.
    """

    __slots__ = ("_poll", "_readable", "fd")

    def __init__(self) -> None:
        if sys.platform == "linux":
            self._readable = self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._readable, self.fd = os.pipe()
            for end in (self._readable, self.fd):
                os.set_blocking(end, False)
        self._poll = select.poll()
        self._poll.register(self._readable, select.POLLIN)

    def __call__(self) -> None:
        # Blocking would mean that it is full of wakes that nobody has read yet: one more says nothing new.
        with suppress(BlockingIOError):
            os.write(self.fd, _ONE)

    def __del__(self) -> None:
        for end in {self._readable, self.fd}:
            os.close(end)

    def clear(self) -> None:
        """Forget every wake so far."""
        with suppress(BlockingIOError):  # there was none
            while len(os.read(self._readable, _PIECE)) == _PIECE:
                pass

    def wait(self, seconds: float | None) -> None:
        """Return when woken, or after so many seconds if not earlier. May return too early."""
        if seconds is None or seconds >= _MILLISECOND or self._readable >= _MOST_SELECTED:
            # Whole milliseconds: the rest is waited for below, in another turn.
            self._poll.poll(None if seconds is None else max(1, math.floor(min(seconds, _LONGEST_S) * 1000)))
        else:
            select.select((self._readable,), (), (), seconds)


_ONE = (1).to_bytes(8, sys.byteorder)
_PIECE = 4096
_MILLISECOND = 0.001
_MOST_SELECTED = 1024
"""`select` takes descriptors below this only; `poll` takes all, but counts in milliseconds."""
_LONGEST_S = 1_000_000.0
"""A later moment is only looked at more often: what `poll` counts in has 31 bits."""


class RealClock:
    """Monotonic wall time. Waits on one wake that every source has."""

    def __init__(self) -> None:
        self._wake = Wake()
        self._subscribed: list[WaitSource] = []

    def now(self) -> float:
        return time.monotonic()

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        for source in sources:
            if not any(source is known for known in self._subscribed):
                self._subscribed.append(source)
                source.subscribe(self._wake)
        while not any([source.ready() for source in sources]):
            # Clear before looking again: a source that becomes ready after that wakes again and ends the wait below.
            # Only here, because a clear is a call of the system, and most waits end with something ready.
            self._wake.clear()
            if any([source.ready() for source in sources]):
                return
            left_s = None if until is None else until - self.now()
            if left_s is not None and left_s <= 0:
                return
            self._wake.wait(left_s)


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
