"""Recorder: finished lines on their way to the disk.

Owns the queue between the event loop and the one writer. What arrives while a write is under way is written together
next: groups form by themselves when the disk is slower than the engine, and nobody waits for a timer.
Invariant: lines are written in order of arrival, and every line that arrived before `close` is written unless a write
fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from plait.batch.beside import beside
from plait.batch.outcomes import LineOutcome

Write = Callable[[Sequence[LineOutcome]], None]


class Recorder:
    """`write` runs in a thread, one call at a time; `written` is called in the loop after each."""

    def __init__(self, write: Write, written: Write) -> None:
        self._write = write
        self._written = written
        self._waiting: list[tuple[Sequence[LineOutcome], asyncio.Event]] = []
        self._wake = asyncio.Event()
        self._is_closed = False

    async def record(self, *outcomes: LineOutcome) -> None:
        """Returns when the lines are on the disk, which are written together.

        If the caller is cancelled meanwhile, they are written all the same.
        """
        on_disk = asyncio.Event()
        self._waiting.append((outcomes, on_disk))
        self._wake.set()
        await on_disk.wait()

    def close(self) -> None:
        """Nothing more will arrive; `run` returns when everything is written."""
        self._is_closed = True
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            group, self._waiting = self._waiting, []
            if group:
                outcomes = [outcome for several, _ in group for outcome in several]
                await beside(self._write, outcomes)
                self._written(outcomes)
                for _, on_disk in group:
                    on_disk.set()
            if self._is_closed and not self._waiting:
                return
