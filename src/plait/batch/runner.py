"""Runner: one batch job from its input file to its output file.

Owns the order of things: look, lock, resume, serve, publish, sum up. The parts are in the files beside it.
Invariant: at every moment the ledger alone says what is finished, so a run may end anywhere and the next goes on from
there.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from plait.api.model_text import ModelText
from plait.batch.config import BatchConfig
from plait.batch.finish_by import FinishBy
from plait.batch.interrupts import stopping_on_signals
from plait.batch.ledger import Job, JobTerms, Ledger
from plait.batch.lines import BatchLine, LineFault, read_lines
from plait.batch.output import OutputFiles, check_output, is_published
from plait.batch.preparing import Preparer
from plait.batch.progress import BatchProgress, ProgressSink, Tally
from plait.batch.serving import output_limit
from plait.batch.serving_job import JobParts, JobServing
from plait.batch.shards import Part, Shard, cut_source
from plait.batch.source import Source, open_source
from plait.batch.summary import Summary
from plait.core.client import EngineClient, ModelInfo
from plait.core.clock import Clock
from plait.core.errors import RequestError, UsageError
from plait.sched.blend.choosing import AnyOrdering, Choice
from plait.sched.blend.job import Lives
from plait.sched.colocation.idle import OnlineTime

JOB_NAME = "output"
"""A ledger beside an output holds one job. It has no name of its own, so that the pair may be renamed."""

_STRICT_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Cutting:
    """A shard, and what the cut is judged by: nothing that machines of one job may differ in. `model`: with the context
    that the model was made for.
    """

    shard: Shard
    lives: Lives
    model: ModelInfo

    def part_of(self, source: Source, text: ModelText, config: BatchConfig) -> Part:
        return self.parts_of(source, text, config)[self.shard.number - 1]

    def parts_of(self, source: Source, text: ModelText, config: BatchConfig) -> list[Part]:
        preparer = Preparer(text, self.model, config.served_names, source.sha256, config.seed)
        limit = partial(output_limit, model=self.model)
        return cut_source(source, preparer, limit, self.lives, self.shard.count)


@dataclass(frozen=True, slots=True)
class BatchPorts:
    """What a run gets from outside. `unix_offset_s` added to the clock's time gives Unix time, for `created`."""

    client: EngineClient
    text: ModelText
    clock: Clock
    unix_offset_s: float
    progress: ProgressSink
    ordering: AnyOrdering | None = None
    """In which order the lines run; None: that of the input."""
    cutting: Cutting | None = None
    """Which part of the input is run; None: all of it."""
    chose: Callable[[Choice], None] = lambda choice: None
    """Told which order was chosen, where there was a choice; from another thread."""
    finish_by: FinishBy | None = None
    """When it should have ended."""
    online: OnlineTime | None = None
    """What requests with somebody waiting take of the engine, where there may be any."""


def run_batch(config: BatchConfig, ports: BatchPorts) -> Summary:
    """Run a batch, or what is left of it. Raises `PlaitError` if the job cannot go on; finished lines stay finished.

    While lines are served, the first SIGINT or SIGTERM ends the run in good order with `Summary.interrupted_by`, the
    second the process. Makes an event loop of its own, which must be the first that uses the client.
    """
    start_s = ports.clock.now()
    with open_source(config.input) as source:
        check_output(config)
        preparer = _preparer(config, ports, source)
        if config.strict:
            _refuse_faulty_input(source, preparer)
        model, cutting = ports.client.model, ports.cutting
        # Before there is a ledger that says which shard it is: perhaps there is no such one.
        part = None if cutting is None else cutting.part_of(source, ports.text, config)
        with closing(Ledger.open(config.ledger)) as ledger, closing(OutputFiles(config)) as output:
            shard = "" if cutting is None else str(cutting.shard)
            terms = JobTerms(source.sha256, model.name, model.weights, model.fingerprint, config.seed, shard)
            job = ledger.begin_job(JOB_NAME, terms, restart=config.restart)
            run = _Run(config, ports, source, preparer, ledger, job, output, part)
            interrupted_by = asyncio.run(run.go())
            return run.summary(ports.clock.now() - start_s, interrupted_by)


class _Run:
    """One run of a job whose ledger is open."""

    def __init__(
        self,
        config: BatchConfig,
        ports: BatchPorts,
        source: Source,
        preparer: Preparer,
        ledger: Ledger,
        job: Job,
        output: OutputFiles,
        part: Part | None,
    ) -> None:
        self._config = config
        self._ports = ports
        self._source = source
        self._ledger = ledger
        self._job = job
        self._output = output
        self._before = ledger.counts(job)
        self._num_lines = source.num_lines if part is None else len(part.numbers)
        self._tally = Tally(self._num_lines, self._before, ports.clock.now, self._progressed, ports.online)
        self._serving = JobServing(
            JobParts(
                client=ports.client,
                text=ports.text,
                preparer=preparer,
                source=source,
                ledger=ledger,
                job=job,
                output=output,
                tally=self._tally,
                max_in_flight=config.max_in_flight,
                unix_now=lambda: int(ports.unix_offset_s + ports.clock.now()),
                ordering=ports.ordering,
                part=part,
                chose=ports.chose,
                is_urgent=lambda: ports.finish_by is not None and ports.finish_by.is_urgent,
            )
        )
        self._interrupted_by: signal.Signals | None = None
        self._is_rewritten = False

    async def go(self) -> signal.Signals | None:
        """Serve what is left and publish the output; the signal that prevented it, if one did."""
        sha256 = self._job.output_sha256
        if sha256 is not None and await asyncio.to_thread(is_published, self._config.output, sha256):
            return None
        with stopping_on_signals(self._stop):
            if not self._job.is_complete:
                self._output.begin(self._ledger.outputs(self._job))
                self._tally.report()
                await self._serving.serve()
                self._tally.report()
            # A signal that came when every line was on the disk prevents nothing.
            if self._interrupted_by is not None and self._tally.progress().lines_left:
                return self._interrupted_by
            self._source.check_unchanged()
            sha256 = await asyncio.to_thread(self._output.publish, self._ledger.outputs(self._job))
            self._ledger.complete(self._job, sha256)
            self._is_rewritten = self._job.is_complete
        return None

    def summary(self, duration_s: float, interrupted_by: signal.Signals | None) -> Summary:
        counts = self._ledger.counts(self._job)
        model = self._ports.client.model
        return Summary(
            # A name that is no UTF-8 is shown as near to it as every terminal and JSON can.
            output=os.fsencode(self._config.output).decode(errors="backslashreplace"),
            lines_total=self._num_lines,
            lines_completed=counts.done,
            lines_failed=counts.failed,
            lines_resumed=self._before.recorded,
            lines_folded=counts.folded,
            shard=None if self._ports.cutting is None else str(self._ports.cutting.shard),
            job_usage=counts.usage,
            run_usage=self._tally.computed,
            duration_s=duration_s,
            ordering_s=self._serving.ordering_s,
            model=model.name,
            fingerprint=model.fingerprint,
            seed_policy=f"lines without a seed get one from --seed {self._config.seed} and their custom_id",
            warnings=self._job.warnings,
            is_rewritten=self._is_rewritten,
            interrupted_by=interrupted_by,
            strict=self._config.strict,
        )

    def _progressed(self, now: BatchProgress) -> None:
        if self._ports.finish_by is not None:
            self._ports.finish_by.judge(now.left_s)
        self._ports.progress(now)

    def _stop(self, number: signal.Signals) -> None:
        self._interrupted_by = number
        self._serving.stop()


def _preparer(config: BatchConfig, ports: BatchPorts, source: Source) -> Preparer:
    return Preparer(ports.text, ports.client.model, config.served_names, source.sha256, config.seed)


def _refuse_faulty_input(source: Source, preparer: Preparer) -> None:
    """With --strict: `UsageError` with the first faults, if any line cannot be served."""
    faults: list[str] = []
    num_faulty = 0
    for number, fault in _faults(read_lines(source), preparer.prepare):
        num_faulty += 1
        if len(faults) < _STRICT_EXAMPLES:
            faults.append(f"line {number}: {fault}")
    if num_faulty:
        raise UsageError(
            f"{num_faulty} of {source.num_lines} lines cannot be served, so nothing was run: {'; '.join(faults)}"
            f"{'; ...' if num_faulty > len(faults) else ''} (without --strict the others are answered)"
        )


def _faults(
    lines: Iterator[BatchLine | LineFault], prepare: Callable[[BatchLine], object]
) -> Iterator[tuple[int, str]]:
    for line in lines:
        if isinstance(line, LineFault):
            yield line.number, line.message
            continue
        try:
            prepare(line)
        except RequestError as error:
            yield line.number, error.message
