"""The reference executor: NumPy, float32, one thread, one op at a time. Slow, obvious, and the definition of correct.

Owns lanes, their queues and the thread that works through them. Between two ops it looks at shares, suspends and
cancels, so every control verb takes effect at the next op. Runnable lanes take turns, op by op. Until the first
`assign` the first lane has every share unit and the others rest.
Invariant: steps of one lane run one after another in order of submission; a lane without a share unit, or suspended,
does not move, except that a step without live chunks ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from plait.core.errors import InvariantError
from plait.core.executor import ExecutorInfo, StepForm
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import STEP_PROGRAM, Chunk, Join, Leave, SeqResult, SeqStatus, StepPlan, StepResult, StepStatus
from plait.exec.intake import Intake
from plait.exec.loading import LogitsObserver, Numbers
from plait.exec.plan_limits import PlanLimits
from plait.exec.reference.checks import check_program
from plait.exec.reference.fingerprint import fingerprint
from plait.exec.reference.memory import CacheMemory
from plait.exec.reference.ops import RopeTable
from plait.exec.reference.step import Loaded, RowState, StepRun
from plait.exec.roster import slots_of
from plait.model.cache_layout import CacheLayout
from plait.model.checks import root_of
from plait.model.ops import Rope, ValueId
from plait.model.pooling import has_pool
from plait.model.program import Program
from plait.weights.formats import ALL_FORMATS, INT8
from plait.weights.table import WeightTable

LANES = (LaneId(0), LaneId(1))
SHARE_UNITS = 2
"""What `assign` hands out. More of them make no lane faster here: lanes take turns on one thread."""
QUEUE_DEPTH = 2
BLAS_THREADS = 1
"""A BLAS's threads spin for each other at the end of every product: alone on the machine two are a little faster than
one, beside anything else that runs they are four times slower (docs/lab/2026-11-29-first-light.md).
"""


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    max_step_tokens: int = 512
    max_rows: int = 256
    threaded: bool = True
    """False: nothing runs until `advance` is called, one op a call; tests use it."""
    poison: bool = False
    """Fill every slot with NaN before it is written, so that a result that reads it shows."""
    observe_logits: LogitsObserver | None = None
    """Sees the logits [num_outputs, vocab_size] of every step: golden comparisons need all of them."""


@dataclass(slots=True, eq=False)
class _Job:
    """A submitted step. `ops` is its run, paused between two ops."""

    run: StepRun
    ops: Iterator[None]
    start_s: float | None = None


@dataclass(slots=True, eq=False)
class _Lane:
    id: LaneId
    units: tuple[int, ...]
    suspended: bool = False
    queue: deque[_Job] = field(default_factory=deque)

    @property
    def runnable(self) -> bool:
        """A dead step ends on a resting lane too: who cancels a parked step wants its memory back."""
        works = bool(self.units) and not self.suspended
        return bool(self.queue) and (works or self.queue[0].run.is_dead)


class ReferenceExecutor:
    """Implements `plait.exec.loading.LoadableExecutor`. `now` is the engine clock's.

    From `load` to `close` every BLAS of the process runs on `BLAS_THREADS` threads, whoever calls it: that is what a
    BLAS offers. An embedder that multiplies matrices of its own beside it will notice.
    """

    def __init__(self, config: ReferenceConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._loaded: Loaded | None = None
        self._fingerprint = ""
        self._rows: dict[SeqId, RowState] = {}
        self._lanes = {lane: _Lane(lane, tuple(range(SHARE_UNITS)) if lane == LANES[0] else ()) for lane in LANES}
        self._turn = 0
        self._finished: list[StepResult] = []
        self._wakes: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._fault: Exception | None = None
        self._thread: threading.Thread | None = None
        self._until_closed = ExitStack()

    def load(self, programs: Mapping[str, Program], weights: WeightTable, layout: CacheLayout) -> None:
        """Take the program "step", its weights as float32, and cache memory. `ModelError` for what cannot be
        executed.
        """
        if self._loaded is not None:
            raise InvariantError("the reference executor is loaded already")
        program = programs[STEP_PROGRAM]
        check_program(program)
        ropes = dict.fromkeys((op.spec, op.mscale) for op in program.ops if isinstance(op, Rope))
        self._fingerprint = fingerprint(weights.short_identity)
        self._limits = PlanLimits.of(program, layout)
        self._intake = Intake(self.info, slots_of(layout), self._limits.fault)
        self._loaded = Loaded(
            program=program,
            weights=_as_floats(program, weights),
            ropes={key: RopeTable(*key) for key in ropes},
            last_use=_last_use(program),
            memory=CacheMemory(layout, poison=self._config.poison),
            poison=self._config.poison,
            observe_logits=self._config.observe_logits,
        )
        self._until_closed.enter_context(threadpool_limits(BLAS_THREADS, user_api="blas"))
        if self._config.threaded:
            self._thread = threading.Thread(target=self._work, name="plait-reference", daemon=True)
            self._thread.start()

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            name="reference",
            lanes=LANES,
            share_units=SHARE_UNITS,
            forms=(StepForm.FUSED, StepForm.LANES),
            queue_depth=QUEUE_DEPTH,
            max_step_tokens=self._config.max_step_tokens,
            max_rows=self._config.max_rows,
            memory_bytes=0,
            formats=tuple(known.name.lower() for known in (*ALL_FORMATS, INT8)),
            fingerprint=self._fingerprint,
            bit_exact=False,
            pools=self._loaded is not None and has_pool(self._loaded.program),
            drafts=True,
        )

    @property
    def numbers(self) -> Numbers:
        return Numbers(("f32",), ("f32",), ("f32",))

    def submit(self, plan: StepPlan) -> None:
        if self._loaded is None:
            raise InvariantError("a step was submitted before a model was loaded")
        with self._changed:
            self._check_alive()
            if self._closed:
                raise InvariantError(f"step {plan.step} was submitted to a closed executor")
            seats = self._intake.submit(plan)
            for change in plan.roster:
                if isinstance(change, Leave):
                    self._rows.pop(change.seq, None)
            rows = {chunk.seq: self._row(chunk, seat.join) for chunk, seat in zip(plan.chunks, seats, strict=True)}
            run = StepRun(self._loaded, plan, seats, rows)
            _cancel_broken(run)
            self._lanes[plan.lane].queue.append(_Job(run, run.run()))
            self._changed.notify_all()

    def assign(self, shares: Mapping[LaneId, tuple[int, ...]], *, may_help: bool = False) -> None:
        with self._changed:
            self._intake.check_shares(shares)
            for lane in self._lanes.values():
                lane.units = tuple(shares[lane.id])
            self._changed.notify_all()

    def suspend(self, lane: LaneId) -> None:
        with self._changed:
            self._intake.suspend(lane)
            self._lanes[lane].suspended = True

    def resume(self, lane: LaneId) -> None:
        with self._changed:
            self._intake.resume(lane)
            self._lanes[lane].suspended = False
            self._changed.notify_all()

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        with self._changed:
            for lane in self._lanes.values():
                for job in lane.queue:
                    if job.run.plan.step == step:
                        job.run.cancelled.update(seqs)
            self._changed.notify_all()

    def collect(self) -> list[StepResult]:
        with self._changed:
            self._check_alive()
            finished, self._finished = self._finished, []
            self._intake.collect(finished)
        return finished

    def ready(self) -> bool:
        return bool(self._finished) or self._fault is not None

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    def next_s(self) -> float | None:
        return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._until_closed.close()

    def advance(self) -> bool:
        """Carry out one op of the lane whose turn it is; False if no lane can move. Only without a thread."""
        with self._changed:
            lane = self._next_lane()
        if lane is None:
            return False
        self._advance(lane)
        return True

    def _work(self) -> None:
        try:
            self._work_until_closed()
        except Exception as fault:  # the thread's outermost loop: the engine must hear of it at its next collect
            self._fault = fault
            self._wake()

    def _work_until_closed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or any(lane.runnable for lane in self._lanes.values()))
                if self._closed:
                    return
                lane = self._next_lane()
            if lane is not None:
                self._advance(lane)

    def _next_lane(self) -> _Lane | None:
        for step in range(len(LANES)):
            lane = self._lanes[LANES[(self._turn + step) % len(LANES)]]
            if lane.runnable:
                self._turn = (self._turn + step + 1) % len(LANES)
                return lane
        return None

    def _advance(self, lane: _Lane) -> None:
        job = lane.queue[0]
        if job.start_s is None:
            job.start_s = self._now()
        fault = None
        try:
            with np.errstate(all="ignore"):
                next(job.ops)
            return
        except StopIteration:
            pass
        except MemoryError as shortage:
            fault = f"not enough memory for a step of {len(job.run.plan.chunks)} chunks: {shortage}"
        self._end(lane, job, job.start_s, fault)

    def _end(self, lane: _Lane, job: _Job, start_s: float, fault: str | None) -> None:
        plan = job.run.plan
        with self._changed:
            seqs = job.run.finish(fault)
            result = StepResult(plan.step, plan.lane, _status(seqs, fault), start_s, self._now(), workers=1, seqs=seqs)
            lane.queue.popleft()
            for seat, one in zip(job.run.seats, seqs, strict=True):
                seat.broken = seat.broken or one.status is not SeqStatus.OK
            for behind in lane.queue:
                _cancel_broken(behind.run)
            self._finished.append(result)
        self._wake()

    def _wake(self) -> None:
        for wake in self._wakes:
            wake()

    def _row(self, chunk: Chunk, join: Join) -> RowState:
        """The sequence's state; made at the first chunk behind its join."""
        state = self._rows.get(chunk.seq)
        if state is None:
            if join.params.has_penalties and len(join.history) != chunk.start:
                raise InvariantError(
                    f"sequence {chunk.seq} has penalties and starts behind {chunk.start} tokens, but joined with "
                    f"{len(join.history)} of them"
                )
            state = self._rows[chunk.seq] = RowState(list(join.history))
        return state

    def _check_alive(self) -> None:
        if self._fault is not None:
            name = type(self._fault).__name__
            raise InvariantError(f"the reference executor stopped: {name}: {self._fault}") from self._fault


def _cancel_broken(run: StepRun) -> None:
    """What is queued behind a chunk that was cancelled or failed has nothing to start from."""
    run.cancelled.update(chunk.seq for chunk, seat in zip(run.plan.chunks, run.seats, strict=True) if seat.broken)


def _status(seqs: Sequence[SeqResult], fault: str | None) -> StepStatus:
    if seqs and all(one.status is SeqStatus.CANCELLED for one in seqs):
        return StepStatus.CANCELLED
    return StepStatus.COMPLETED if fault is None else StepStatus.FAILED


def _as_floats(program: Program, weights: WeightTable) -> dict[str, npt.NDArray[np.float32]]:
    return {name: np.ascontiguousarray(weights[name].dequantize()) for name in program.weights}


def _last_use(program: Program) -> dict[ValueId, int]:
    """The op behind which a value is dropped; a view keeps the value that it looks at."""
    return {root_of(program.values, value): index for index, op in enumerate(program.ops) for value in op.inputs}
