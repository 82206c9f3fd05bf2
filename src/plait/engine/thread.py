"""Engine thread: runs the loop and is the one place where any fault of it is caught.

Owns the thread from `start` to `close`. Invariant: when the loop ends, however it ends, every open request is answered.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

from plait.core.executor import Executor
from plait.core.wakeups import wake_promptly
from plait.engine.client import AsyncClient
from plait.engine.engine import Engine
from plait.engine.inbox import Close, Inbox


class EngineThread:
    """`report` gets the trace of a fault: it is ours, and must not be lost."""

    def __init__(
        self, engine: Engine, executor: Executor, inbox: Inbox, client: AsyncClient, report: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._inbox = inbox
        self._client = client
        self._report = report
        self._thread = threading.Thread(target=self._run, name="plait-engine", daemon=True)
        self._process = os.getpid()

    def start(self) -> None:
        self._client.attach(self._engine.health)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        """Of the thread while it runs, for whoever looks at its processor time."""
        return self._thread.ident if self._thread.is_alive() else None

    def close(self) -> None:
        """Abort what is running, end the loop and stop the executor; waits for both. Nothing in a process that was
        forked off: it has neither, only their locks and the descriptors by which they are woken.
        """
        if os.getpid() != self._process:
            return
        self._inbox.put(Close())
        self._thread.join()
        self._executor.close()

    def _run(self) -> None:
        reason = "the engine was closed"
        wake_promptly()
        try:
            self._engine.run()
        except Exception as fault:  # the engine's outermost loop: nothing may be lost silently
            reason = f"the engine stopped on a fault of its own: {type(fault).__name__}: {fault}"
            self._report(traceback.format_exc())
        finally:
            # Also if the report could not be made: nobody may be left waiting.
            self._client.stopped(reason)
