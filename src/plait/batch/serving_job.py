"""Serving a job: every line that its ledger does not have yet, through an engine.

Owns the tasks of one job under way: lines to the engine on one side, finished ones to the disk on the other. Opens and
publishes nothing.
Invariant: however it ends, a line that was finished is in the ledger when `serve` returns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from plait.api.model_text import ModelText
from plait.batch.beside import beside
from plait.batch.ledger import Job, Ledger
from plait.batch.lines import read_lines
from plait.batch.ordered import AnyLine, Lines, LinesAsGiven, LinesInOrder
from plait.batch.outcomes import LineOutcome
from plait.batch.output import OutputFiles
from plait.batch.planned import Planned, planned
from plait.batch.preparing import Preparer
from plait.batch.progress import Tally
from plait.batch.recorder import Recorder
from plait.batch.serving import LineServer, output_limit
from plait.batch.shards import Part
from plait.batch.source import Source
from plait.batch.survey import survey
from plait.core.client import EngineClient
from plait.sched.blend.choosing import AnyOrdering, Choice, Choosing, GivenUp, feed_for, is_as_given
from plait.sched.blend.feeds import JobOrder


@dataclass(frozen=True, slots=True)
class JobParts:
    """What a job under way works with. `unix_now` gives Unix time in whole seconds, for the answers."""

    client: EngineClient
    text: ModelText
    preparer: Preparer
    source: Source
    ledger: Ledger
    job: Job
    output: OutputFiles
    tally: Tally
    max_in_flight: int
    unix_now: Callable[[], int]
    ordering: AnyOrdering | None = None
    """None: in the order of the input."""
    part: Part | None = None
    """The lines of the input that are the job's; None: all."""
    chose: Callable[[Choice], None] = lambda choice: None
    """Told which order was chosen, where there was a choice; from another thread."""
    idle_ratio: Callable[[], float] = lambda: 1.0
    """What others leave idle, as `plait.sched.colocation.idle` says it; asked in another thread."""
    is_urgent: Callable[[], bool] = lambda: False
    """Whether its end is at risk; asked in another thread."""


class JobServing:
    """One pass over a job's lines. `stop` may come from the event loop at any time."""

    def __init__(self, parts: JobParts) -> None:
        self._parts = parts
        self._serving: asyncio.Task[None] | None = None
        self._stopped = threading.Event()
        self._planned: Planned | None = None
        """What the lines ask for altogether, if they were looked at before the first one ran."""
        self.ordering_s = 0.0
        """It took to find the order of the lines, before the first one ran."""

    async def serve(self) -> None:
        """Return when every line is recorded, or those that were finished when `stop` came. Raises what went wrong."""
        parts = self._parts
        recorder = Recorder(self._write, parts.tally.recorded)
        server = LineServer(
            parts.client,
            parts.preparer,
            parts.text.tokenizer,
            recorder,
            parts.tally,
            parts.unix_now,
            lambda request: parts.ledger.answer_to(parts.job, request),
            parts.is_urgent,
        )
        finished = await beside(parts.ledger.finished, parts.job)
        recording = asyncio.create_task(recorder.run())
        serving = asyncio.create_task(self._serve(server, finished))
        self._serving = serving
        if self._stopped.is_set():
            serving.cancel()
        try:
            await asyncio.wait([serving, recording], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # However the serving ended, what was finished is written; and if writing failed, serving is pointless.
            self.stop()
            await asyncio.wait([serving])
            recorder.close()
            await asyncio.wait([recording])
        for task in (recording, serving):
            if not task.cancelled():
                task.result()

    async def _serve(self, server: LineServer, finished: frozenset[int]) -> None:
        begun_s = self._parts.tally.now()
        lines = await beside(self._lines, finished)
        self.ordering_s = self._parts.tally.now() - begun_s
        if self._planned is not None:
            self._parts.tally.plan(self._planned)
        await server.serve(lines, self._parts.max_in_flight)

    def _lines(self, finished: frozenset[int]) -> Lines:
        parts, ordering = self._parts, self._parts.ordering
        num_left = self._num_lines - len(finished)
        if ordering is None or is_as_given(ordering, num_left):
            if isinstance(ordering, Choosing):
                parts.chose(Choice(JobOrder.INPUT, num_left))
            return LinesAsGiven(self._left(finished))
        if parts.part is not None:
            found = parts.part.found.only(range(len(parts.part.found)), finished)
        else:
            found = survey(
                parts.source,
                parts.preparer,
                finished,
                lambda request: output_limit(request, parts.client.model),
                self._go_on,
                lambda request: parts.ledger.answer_to(parts.job, request) is not None,
            )
        feed, choice = feed_for(found.job, ordering, self._go_on)
        if choice is not None:
            parts.chose(choice)
        self._planned = planned(found.job, ordering)
        return LinesInOrder(
            parts.source, found, feed, lambda surveyed: self._left(finished | surveyed), parts.idle_ratio
        )

    @property
    def _num_lines(self) -> int:
        part = self._parts.part
        return self._parts.source.num_lines if part is None else len(part.numbers)

    def _left(self, finished: frozenset[int]) -> Iterator[AnyLine]:
        """The lines of the job that are not finished, as they stand."""
        part = self._parts.part
        for line in read_lines(self._parts.source):
            if line.number not in finished and (part is None or line.number in part.numbers):
                yield line

    def _go_on(self) -> None:
        """In the thread that looks for an order: whoever stops a job waits for it to end."""
        if self._stopped.is_set():
            raise GivenUp("the job was stopped before its order was found")

    def stop(self) -> None:
        """Finish no further line."""
        self._stopped.set()
        if self._serving is not None:
            self._serving.cancel()

    def _write(self, outcomes: Sequence[LineOutcome]) -> None:
        self._parts.ledger.record(self._parts.job, outcomes)
        self._parts.output.append(outcome.output for outcome in outcomes)
