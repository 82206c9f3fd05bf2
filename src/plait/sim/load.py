"""Loads: where requests come from, one after the other, whether or not they wait for answers.

Owns the protocol, and the load of a trace, which asks for nothing. Loads that go on when they are answered (sessions
with pauses) are others of the same protocol. Knows no engine.
Invariant: moments never go back, and a load that waits for no answer says so, so that nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from plait.core.errors import InvariantError
from plait.core.ids import RequestId
from plait.sim.arrivals import Arrival


class Load(Protocol):
    @property
    def is_open(self) -> bool:
        """Requests come whatever becomes of those before: no answer brings one forth."""

    def next_s(self) -> float | None:
        """When the next request comes; None: not before somebody is answered, or never."""

    def take(self) -> Arrival:
        """The next request, which is due."""

    def ended(self, request: RequestId, at_s: float) -> None:
        """All answers of a request have come, or it was refused."""


class TraceLoad:
    """Arrivals in order of time, read as they become due: memory does not grow with their number."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._next: Arrival | None = next(self._arrivals, None)

    @property
    def is_open(self) -> bool:
        return True

    def next_s(self) -> float | None:
        return None if self._next is None else self._next.at_s

    def take(self) -> Arrival:
        due = self._next
        if due is None:
            raise InvariantError("a load that has ended is asked for a request")
        self._next = next(self._arrivals, None)
        if self._next is not None and self._next.at_s < due.at_s:
            raise InvariantError(
                f"request {self._next.request.id} arrives before {due.request.id}, which is ahead of it"
            )
        return due

    def ended(self, request: RequestId, at_s: float) -> None:
        """Nothing comes of it."""
