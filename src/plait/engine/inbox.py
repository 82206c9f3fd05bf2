"""Inbox: the only door into the engine's thread.

Owns the messages that wait for the engine. Any thread may put; only the engine drains.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from plait.core.ids import RequestId
from plait.core.request import Request


@dataclass(frozen=True, slots=True)
class Arrive:
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    request: RequestId


@dataclass(frozen=True, slots=True)
class Close:
    """Abort what is left and end the loop."""


Message = Arrive | Abort | Close


class Inbox:
    """A thread-safe queue that is also a `WaitSource`."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], None]] = []

    def put(self, message: Message) -> None:
        with self._lock:
            self._messages.append(message)
            wakes = list(self._wakes)
        for wake in wakes:
            wake()

    def drain(self) -> list[Message]:
        """Everything that has come so far, in order."""
        with self._lock:
            messages = list(self._messages)
            self._messages.clear()
        return messages

    def ready(self) -> bool:
        return bool(self._messages)

    def subscribe(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._wakes.append(wake)

    def next_s(self) -> float | None:
        return None
