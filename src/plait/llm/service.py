"""Service: an engine with an event loop of its own, for callers that have none.

Owns the loop's thread and the life of both. Many threads may `run` work at once.
Invariant: after `close`, which may be called again and from anywhere, no thread of it is left. A process that was
forked off has none of them: there it answers nobody, and leaves alone what it shares with its parent.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import TypeVar

from plait.build import LocalEngine
from plait.core.errors import EngineStopped

T = TypeVar("T")

_CLOSED = "this LLM was closed; make another one"
_OUR_THREADS = "plait-"
"""How the names of all of them begin."""


class Service:
    """A running engine behind blocking calls."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()
        # Daemons, because nobody is obliged to close: the interpreter ends threads of programs that do not.
        self._thread = threading.Thread(target=self._loop.run_forever, name="plait-llm", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Wait for `work`, which runs in the service's loop. An interrupt cancels it and is raised here."""
        if os.getpid() != self._process:
            work.close()
            raise EngineStopped(
                f"this LLM works in process {self._process}, and process {os.getpid()} was forked off it; make another "
                "one there"
            )
        with self._closing:
            if self._is_closed:
                work.close()
                raise EngineStopped(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise EngineStopped(_CLOSED) from None
        finally:
            # An interrupt came up here and not in the work, which has to hear of it.
            future.cancel()

    def close(self) -> None:
        if os.getpid() != self._process:
            return
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            # Everything open is answered with an abort before the loop ends.
            self.engine.close()
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def close_from_anywhere(close: Callable[[], None]) -> None:
    """For finalizers, which run in whatever thread a collection happens in: in one of ours, which `close` waits for,
    nobody may wait.
    """
    if threading.current_thread().name.startswith(_OUR_THREADS):
        threading.Thread(target=close, name=f"{_OUR_THREADS}closing").start()
    else:
        close()
