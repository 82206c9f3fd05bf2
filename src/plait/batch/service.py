"""Batch service: the batches of a server, from their creation to their files.

Owns which batches run, and moves each through its states; the serving itself is `serving_job`'s, and what is finished
is in a ledger of its own for every batch. Parses no HTTP.
Invariants: whatever happens to the process, a batch goes on where its ledger ends; the input of a batch that runs stays
where it is; a batch's failure is never another's; the event loop never waits for a disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from plait.api.model_text import ModelText
from plait.batch.beside import beside
from plait.batch.config import BatchConfig
from plait.batch.finish_by import FinishBy, Outlook
from plait.batch.ledger import Counts, Job, JobTerms, Ledger, OtherFormat, OtherJob
from plait.batch.lines import LineFault, read_lines
from plait.batch.outcomes import never_run
from plait.batch.output import OutputFiles
from plait.batch.preparing import Preparer
from plait.batch.progress import BatchProgress, Tally
from plait.batch.records import BatchFault, BatchRecord, BatchState, StoredFile
from plait.batch.serving_job import JobParts, JobServing
from plait.batch.source import Source, open_source
from plait.batch.store import Store
from plait.batch.trouble import may_pass
from plait.batch.validating import faults_of, prompt_tokens_of
from plait.core.client import EngineClient
from plait.core.errors import EngineStopped, PlaitError, RequestError
from plait.metrics.limit import WorkDone, limit_between
from plait.sched.blend.choosing import AnyOrdering, Choice
from plait.sched.colocation.idle import OnlineTime

MAX_AT_ONCE = 4
"""Batches that run at the same time: a short one does not wait for a long one, and memory stays bounded."""

MAX_IN_FLIGHT = 128
"""Lines of a batch in the engine."""

MAX_WAITING = 1000
"""Batches of everyone that are not finished."""

SWEEP_S = 60.0

T = TypeVar("T")

_LOG = logging.getLogger("plait.batch")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """`served_names`: names that lines may use for the model. `max_in_flight`: lines of a batch in the engine.
    `rest_s`: how long a batch waits that met trouble which may pass.
    """

    served_names: tuple[str, ...]
    max_in_flight: int = MAX_IN_FLIGHT
    seed: int = 0
    rest_s: float = 30.0
    ordering: AnyOrdering | None = None
    """Of the lines of a batch; None: as they stand."""


@dataclass(slots=True, eq=False)
class _Running:
    """A batch under way. `record` is what clients are shown."""

    record: BatchRecord
    serving: JobServing | None = None
    ends_as: BatchState | None = None
    """Cancelled or expired, once somebody said so."""
    finish_by: FinishBy | None = None
    """When it should have ended, if somebody said so, or when it expires."""

    @property
    def is_urgent(self) -> bool:
        return self.finish_by is not None and self.finish_by.is_urgent

    def stop(self, state: BatchState) -> None:
        """Nothing, once its files are being made: there is no line left to keep from running."""
        if self.ends_as is None and self.record.state is not BatchState.FINALIZING:
            self.ends_as = state
            if self.serving is not None:
                self.serving.stop()


class BatchService:
    """`unix_now` gives whole seconds, `now` seconds for measuring, `work_done` what the engine has done so far, and
    `idle_ratio` what requests with somebody waiting leave idle (`plait.sched.colocation.idle`), `online` what they
    take.
    """

    def __init__(
        self,
        config: ServiceConfig,
        store: Store,
        client: EngineClient,
        text: ModelText,
        unix_now: Callable[[], int],
        now: Callable[[], float],
        work_done: Callable[[], WorkDone],
        idle_ratio: Callable[[], float] = lambda: 1.0,
        online: OnlineTime | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._client = client
        self._text = text
        self._unix_now = unix_now
        self._now = now
        self._work_done = work_done
        self._idle_ratio = idle_ratio
        self._online = online
        self._running: dict[str, _Running] = {}
        self._resting: dict[str, float] = {}
        """Batch -> when it is tried again."""
        self._rested: dict[str, BatchRecord] = {}
        """As they stood when they began to rest: a store on a full disk cannot be told, and counts never go back."""
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plait-store")
        """The one that uses the store while somebody waits for it. A commit takes milliseconds, at times many."""
        self._moving = asyncio.Lock()
        """Held from a look at the store to what follows from it."""

    @property
    def store(self) -> Store:
        return self._store

    async def at_store(self, work: Callable[..., T], *given: object) -> T:
        """What a method of the store gives, without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *given))

    async def create(
        self, record: BatchRecord, check: Callable[[Sequence[BatchRecord]], None] | None = None
    ) -> BatchRecord:
        """Take on a batch; it begins as soon as one of those before it has ended. `check` raises where its tenant has
        too much in those that are not finished: nobody else's comes in between.
        """
        async with self._moving:
            unfinished = await self.at_store(self._store.unfinished_batches)
            if check is not None:
                check([one for one in unfinished if one.tenant == record.tenant])
            if len(unfinished) >= MAX_WAITING:
                raise RequestError(
                    f"{len(unfinished)} batches are not finished and at most {MAX_WAITING} are taken on; try again "
                    "later",
                    status=429,
                    kind="rate_limit_error",
                    code="queue_full",
                )
            # Again: it may have been deleted since the caller looked.
            await self.at_store(self._store.file, record.input_file_id, record.tenant, record.created_at)
            await self.at_store(self._store.add_batch, record)
        self._wake.set()
        return record

    def under_way(self) -> list[BatchRecord]:
        """Everyone's that run now, as they stand."""
        return [running.record for running in tuple(self._running.values())]

    async def get(self, batch_id: str, tenant: str) -> BatchRecord:
        return self._as_it_stands(await self.at_store(self._store.batch, batch_id, tenant))

    async def all_of(self, tenant: str) -> list[BatchRecord]:
        records = await self.at_store(self._store.batches, tenant)
        return [self._as_it_stands(record) for record in records]

    async def cancel(self, batch_id: str, tenant: str) -> BatchRecord:
        """Finish no further line; what is finished stays. Again: nothing more happens."""
        async with self._moving:
            record = await self.get(batch_id, tenant)
            if record.state in (BatchState.CANCELLING, BatchState.CANCELLED):
                return record
            if record.state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS):
                raise RequestError(
                    f"batch {batch_id} is {record.state.value}; only one that is validating or in progress can be "
                    "cancelled",
                    param="id",
                    code="batch_not_cancellable",
                )
            record = await self._keep(record.moved(BatchState.CANCELLING, self._unix_now()))
            running = self._running.get(batch_id)
            if running is not None:
                running.stop(BatchState.CANCELLED)
        self._wake.set()
        return record

    async def delete_file(self, file: StoredFile) -> None:
        """`RequestError` for the input of a batch that is not finished."""
        async with self._moving:
            if await self._is_in_use(file.id):
                raise RequestError(
                    f"{file.id} is the input of a batch that is not finished; cancel the batch first",
                    param="id",
                    code="file_in_use",
                )
            await self.at_store(self._store.delete_file, file)

    async def _is_in_use(self, file_id: str) -> bool:
        """Whether a batch that is not finished reads this file."""
        unfinished = await self.at_store(self._store.unfinished_batches)
        return any(record.input_file_id == file_id for record in unfinished)

    async def run(self) -> None:
        """Run batches until cancelled. What is under way then goes on with the next start."""
        tasks: dict[asyncio.Task[None], str] = {}
        try:
            while True:
                self._wake.clear()
                try:
                    await self._sweep()
                    async with self._moving:
                        for record in await self._due(MAX_AT_ONCE - len(tasks)):
                            self._running[record.id] = _Running(self._counted(record))
                            tasks[asyncio.create_task(self._run_one(record.id))] = record.id
                except PlaitError as error:
                    # A store that cannot be used now is no end: without this loop every batch would stand still.
                    _LOG.error("batches wait", extra={"fields": {"reason": str(error)}})
                with suppress(TimeoutError):
                    # Not `wait_for`, which loses a cancellation that comes together with what it waits for.
                    async with asyncio.timeout(min(SWEEP_S, self._config.rest_s)):
                        await self._wake.wait()
                for task in [task for task in tasks if task.done()]:
                    del self._running[tasks.pop(task)]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _due(self, room: int) -> list[BatchRecord]:
        """Batches that should begin or go on now, the oldest first."""
        if room <= 0:
            return []
        now = self._now()
        self._resting = {batch: until for batch, until in self._resting.items() if until > now}
        unfinished = await self.at_store(self._store.unfinished_batches)
        return [one for one in unfinished if one.id not in self._running and one.id not in self._resting][:room]

    async def _sweep(self) -> None:
        """Forget files whose time has come, and end batches whose time has."""
        now = self._unix_now()
        for file in await self.at_store(self._store.expired_files, now):
            with suppress(RequestError):  # in use
                await self.delete_file(file)
        for running in self._running.values():
            if running.record.expires_at <= now:
                running.stop(BatchState.EXPIRED)

    async def _run_one(self, batch_id: str) -> None:
        running = self._running[batch_id]
        try:
            await self._go(running)
            if running.record.state.is_final and running.record.state is not BatchState.FAILED:
                self._rested.pop(batch_id, None)
                # Its files have everything; a failed one's ledger is kept for whoever wants to know why.
                folder = self._store.batch_folder(batch_id)
                await beside(shutil.rmtree, folder, True)
        except OtherJob as error:
            message = (
                f"the batch {error.what}: the server was restarted with another model in its midst. All lines of a "
                "batch are answered by one model; create it anew, for this model or at a server of the first"
            )
            _LOG.error("batch failed", extra={"fields": {"batch": batch_id, "reason": message}})
            await self._fail(running, BatchFault("model_changed", message))
        except OtherFormat as error:
            _LOG.error("batch failed", extra={"fields": {"batch": batch_id, "reason": str(error)}})
            message = (
                "the batch was begun by another version of the server, which kept its finished lines in a form that "
                f"this one does not read (format {error.found}); create it anew"
            )
            await self._fail(running, BatchFault("version_changed", message))
        except (PlaitError, OSError) as error:
            if isinstance(error, EngineStopped) or may_pass(error):
                self._rest(batch_id, error)
            else:
                _LOG.error("batch failed", extra={"fields": {"batch": batch_id, "reason": str(error)}})
                # Where the server keeps its files is no client's business.
                reason = str(error).replace(f"{self._store.folder}/", "")
                await self._fail(running, BatchFault("batch_failed", reason))
        except Exception:  # the outermost loop of a batch: one that goes wrong is no other's trouble
            _LOG.exception("batch failed", extra={"fields": {"batch": batch_id}})
            message = "something went wrong in the server; its log has the trace under this batch's id"
            await self._fail(running, BatchFault("internal_error", message))
        finally:
            self._wake.set()

    def _rest(self, batch_id: str, trouble: Exception) -> None:
        """Try again later: what is finished is in the ledger."""
        self._rested[batch_id] = self._running[batch_id].record
        self._resting[batch_id] = self._now() + self._config.rest_s
        fields = {"batch": batch_id, "reason": str(trouble), "again_in_s": self._config.rest_s}
        _LOG.warning("batch waits", extra={"fields": fields})

    async def _fail(self, running: _Running, fault: BatchFault) -> None:
        try:
            await self._move(running, BatchState.FAILED, faults=(fault,))
        except PlaitError as error:
            self._rest(running.record.id, error)

    async def _go(self, running: _Running) -> None:
        record = running.record
        if record.state is BatchState.CANCELLING:
            running.ends_as = BatchState.CANCELLED
        elif record.expires_at <= self._unix_now():
            running.ends_as = BatchState.EXPIRED
        config = await self.at_store(self._config_of, record)
        opened = ExitStack()
        try:
            await self._go_on(running, config, opened)
        finally:
            await beside(opened.close)

    async def _go_on(self, running: _Running, config: BatchConfig, opened: ExitStack) -> None:
        """What opens, reads and writes whole files does so beside the loop."""
        record = running.record
        source = await beside(opened.enter_context, open_source(config.input))
        model = self._client.model
        names, seed = config.served_names, config.seed
        # Two batches of one file run side by side, and no two requests of an engine have the same id.
        own = f"{record.id}:{source.sha256}"
        preparer = Preparer(self._text, model, names, own, seed, tenant=record.tenant)
        if record.state is BatchState.VALIDATING and running.ends_as is None:
            faults = tuple(await beside(faults_of, source, preparer, record.endpoint))
            if not faults and record.max_queued_tokens is not None:
                faults = await self._too_many_tokens(running, source, preparer, record.max_queued_tokens)
            if faults and await self._move_on(running, BatchState.FAILED, faults=faults):
                return
            await self._move_on(running, BatchState.IN_PROGRESS, num_total=source.num_lines)
        output = await beside(lambda: opened.enter_context(closing(OutputFiles(config))))
        ledger = await beside(lambda: opened.enter_context(closing(Ledger.open(config.ledger))))
        terms = JobTerms(source.sha256, model.name, model.weights, model.fingerprint, config.seed)
        job = await beside(ledger.begin_job, "output", terms)
        await self._serve(running, source, preparer, ledger, job, output)
        await self._finish(running, source, preparer, ledger, job)

    async def _too_many_tokens(
        self, running: _Running, source: Source, preparer: Preparer, most: int
    ) -> tuple[BatchFault, ...]:
        """Counts the batch's prompt tokens, and finds whether those of its key have too many in the queue with it."""
        record = running.record
        num_tokens = await beside(prompt_tokens_of, source, preparer)
        async with self._moving:
            unfinished = await self.at_store(self._store.unfinished_batches)
            others = sum(one.queued_tokens for one in unfinished if one.tenant == record.tenant and one.id != record.id)
            if others + num_tokens <= most:
                await self._keep(replace(running.record, queued_tokens=num_tokens))
                return ()
        have = f"unfinished batches of this key have {others:,} prompt tokens and this one has {num_tokens:,}"
        way_out = "split it" if num_tokens > most else "create it again when some of them have ended"
        return (BatchFault("token_limit_exceeded", f"{have}; its limit is batch-tokens={most}: {way_out}"),)

    def _config_of(self, record: BatchRecord) -> BatchConfig:
        """`RequestError` for an input that somebody took away behind our back."""
        stored = self._store.file(record.input_file_id, record.tenant, 0)
        if not self._store.path(stored).is_file():
            raise RequestError(
                f"the content of {stored.id} is no longer on the server's disk; upload it again",
                param="input_file_id",
                code="content_lost",
            )
        return BatchConfig(
            input=str(self._store.path(stored)),
            output=self._store.batch_folder(record.id) / "output.jsonl",
            max_in_flight=self._config.max_in_flight,
            seed=self._config.seed,
            served_names=self._config.served_names,
        )

    async def _serve(
        self, running: _Running, source: Source, preparer: Preparer, ledger: Ledger, job: Job, output: OutputFiles
    ) -> None:
        if running.record.state is BatchState.FINALIZING:
            return
        await beside(output.begin, ledger.outputs(job))
        before = await beside(ledger.counts, job)
        if running.ends_as is not None:
            return
        record = running.record
        due_s = min(record.expires_at, record.finish_by or record.expires_at) - self._unix_now()
        running.finish_by = FinishBy(self._now() + due_s, self._now, partial(_log_outlook, record.id))
        tally = Tally(
            source.num_lines, before, self._now, lambda now: self._progressed(running, now, before), self._online
        )
        self._progressed(running, tally.progress(), before)
        running.serving = JobServing(
            JobParts(
                client=self._client,
                text=self._text,
                preparer=preparer,
                source=source,
                ledger=ledger,
                job=job,
                output=output,
                tally=tally,
                max_in_flight=self._config.max_in_flight,
                unix_now=self._unix_now,
                ordering=self._config.ordering,
                chose=partial(_log_choice, running.record.id),
                idle_ratio=self._idle_ratio,
                is_urgent=lambda: running.is_urgent,
            )
        )
        left_s = running.record.expires_at - self._unix_now()
        ending = asyncio.get_running_loop().call_later(left_s, running.stop, BatchState.EXPIRED)
        begun_s, begun = self._now(), self._work_done()
        try:
            await running.serving.serve()
        finally:
            ending.cancel()
        limit, duration_s = limit_between(begun, self._work_done()), self._now() - begun_s
        closing = _closing(before, await beside(ledger.counts, job), duration_s, limit)
        _LOG.info("batch served", extra={"fields": {"batch": running.record.id, "total": source.num_lines, **closing}})

    async def _finish(self, running: _Running, source: Source, preparer: Preparer, ledger: Ledger, job: Job) -> None:
        """Make the files and move to the last state."""
        counts = await beside(ledger.counts, job)
        is_whole = counts.recorded == source.num_lines
        if running.ends_as is BatchState.EXPIRED and is_whole:
            running.ends_as = None
        if running.record.state is BatchState.IN_PROGRESS:
            await self._move_on(running, BatchState.FINALIZING)
        done = ledger.outputs(job, failed=False)
        made = await beside(self._write_file, running.record, "output", done) if counts.done else None
        ends_as = running.ends_as
        finished = await beside(ledger.finished, job)
        left = () if ends_as is None else _left(source, preparer, finished, ends_as)
        errors = _chained(ledger.outputs(job, failed=True), left)
        wrong = await beside(self._write_file, running.record, "error", errors)
        usage = counts.usage
        await self._move(
            running,
            ends_as or BatchState.COMPLETED,
            output_file_id=None if made is None else made.id,
            error_file_id=None if wrong is None else wrong.id,
            num_total=source.num_lines,
            num_completed=counts.done,
            num_failed=counts.failed,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
        )

    def _write_file(self, record: BatchRecord, kind: str, lines: Iterator[str]) -> StoredFile | None:
        """A file of a batch; None where there are no lines."""
        now = self._unix_now()
        expires_at = None if record.output_expires_after_s is None else now + record.output_expires_after_s
        file = StoredFile(
            # Made anew after a crash, it is the same file.
            id=f"file-{hashlib.blake2b(f'{record.id}/{kind}'.encode(), digest_size=12).hexdigest()}",
            tenant=record.tenant,
            filename=f"{record.id}_{kind}.jsonl",
            purpose="batch_output",
            num_bytes=0,
            created_at=now,
            expires_at=expires_at,
        )
        made = self._store.write_file(file, lines)
        if made.num_bytes:
            return made
        self._store.delete_file(made)
        return None

    def _progressed(self, running: _Running, now: BatchProgress, before: Counts) -> None:
        earlier = before.usage
        if running.finish_by is not None:
            running.finish_by.judge(now.left_s)
        running.record = replace(
            running.record,
            num_completed=now.lines_done,
            num_failed=now.lines_failed,
            prompt_tokens=earlier.prompt_tokens + now.prompt_tokens,
            cached_tokens=earlier.cached_tokens + now.cached_tokens,
            output_tokens=earlier.output_tokens + now.output_tokens,
            left_s=now.left_s,
            outlook=None if running.finish_by is None else running.finish_by.outlook.value,
        )

    async def _move_on(self, running: _Running, state: BatchState, **fields: object) -> bool:
        """Whether it went on so: not if somebody has ended it."""
        async with self._moving:
            if running.ends_as is not None:
                return False
            await self._keep(replace(running.record.moved(state, self._unix_now()), **fields))  # type: ignore[arg-type]
            return True

    async def _move(self, running: _Running, state: BatchState, **fields: object) -> None:
        async with self._moving:
            record, now = running.record, self._unix_now()
            if record.state is BatchState.CANCELLING and state is BatchState.EXPIRED:
                # Somebody cancelled it in its last moment, and was told so.
                state = BatchState.CANCELLED
            if state is BatchState.CANCELLED and record.state is not BatchState.CANCELLING:
                record = record.moved(BatchState.CANCELLING, now)
            await self._keep(replace(record.moved(state, now), **fields))  # type: ignore[arg-type]

    async def _keep(self, record: BatchRecord) -> BatchRecord:
        """Only with `_moving` held."""
        await self.at_store(self._store.update_batch, record)
        running = self._running.get(record.id)
        if running is not None:
            # Lines went on finishing meanwhile.
            running.record = record if record.state.is_final else record.counted_as(running.record)
        return record

    def _as_it_stands(self, record: BatchRecord) -> BatchRecord:
        running = self._running.get(record.id)
        if record.state.is_final:
            return record
        return self._counted(record) if running is None else running.record

    def _counted(self, record: BatchRecord) -> BatchRecord:
        """With the counts that it had when it began to rest, if it rests."""
        rested = self._rested.get(record.id)
        if rested is None:
            return record
        return replace(
            record,
            num_total=rested.num_total,
            num_completed=rested.num_completed,
            num_failed=rested.num_failed,
            prompt_tokens=rested.prompt_tokens,
            cached_tokens=rested.cached_tokens,
            output_tokens=rested.output_tokens,
        )


def _log_choice(batch_id: str, choice: Choice) -> None:
    fields: dict[str, object] = {
        "batch": batch_id,
        "order": choice.order.value,
        "lines": choice.num_requests,
        "reason": choice.why,
    }
    if choice.seconds:
        fields["seconds"] = {order.value: round(seconds, 3) for order, seconds in choice.seconds.items()}
    _LOG.info("batch order", extra={"fields": fields})


def _log_outlook(batch_id: str, outlook: Outlook, left_s: float | None, to_go_s: float) -> None:
    fields: dict[str, object] = {"batch": batch_id, "outlook": outlook.value, "due_in_s": round(to_go_s, 1)}
    if left_s is not None:
        fields["left_s"] = round(left_s, 1)
    _LOG.log(logging.INFO if outlook is Outlook.IN_TIME else logging.WARNING, "batch due", extra={"fields": fields})


def _closing(before: Counts, after: Counts, duration_s: float, limit: str) -> dict[str, object]:
    """What one run of a batch did, for the log: lines of all runs, computed tokens of this one."""
    output = after.computed.output_tokens - before.computed.output_tokens
    prompt = after.computed.prompt_tokens - before.computed.prompt_tokens
    cached = after.computed.cached_tokens - before.computed.cached_tokens
    return {
        "completed": after.done,
        "failed": after.failed,
        "folded": after.folded,
        "duration_s": round(duration_s, 3),
        "prompt_tokens": prompt,
        "prefix_hit_fraction": round(cached / prompt, 4) if prompt else 0.0,
        "output_tokens": output,
        "output_tokens_per_s": round(output / duration_s, 1) if duration_s > 0 else 0.0,
        "limited_by": limit,
    }


def _left(source: Source, preparer: Preparer, finished: frozenset[int], ends_as: BatchState) -> Iterator[str]:
    """Error lines of what was never run."""
    word = "expired" if ends_as is BatchState.EXPIRED else "cancelled"
    for line in read_lines(source):
        if line.number not in finished:
            fault = LineFault(
                line.number, line.custom_id, f"batch_{word}", f"the batch was {word} before this line ran"
            )
            yield never_run(preparer.key(line.number), fault).output


def _chained(first: Iterator[str], second: Iterator[str] | tuple[()]) -> Iterator[str]:
    yield from first
    yield from second
