"""Outbox: where the engine puts answers; one flush per tick, so a step wakes a client's thread once.

Owns the protocol. The client room implements it for asyncio, the simulator by doing nothing.
"""

from __future__ import annotations

from typing import Protocol

from plait.core.client import Delta
from plait.core.errors import RequestError
from plait.core.ids import RequestId


class Outbox(Protocol):
    def put(self, request: RequestId, answer: Delta | RequestError) -> None:
        """Queue one delta, or the refusal of the whole request."""

    def flush(self) -> None:
        """Deliver what was queued in this tick."""


class NullOutbox:
    """Nobody listens: simulations read the event stream instead."""

    def put(self, request: RequestId, answer: Delta | RequestError) -> None:
        return

    def flush(self) -> None:
        return
