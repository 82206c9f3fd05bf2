"""The reference executor: NumPy, float32, one thread, one op at a time. Slow, obvious, and the definition of correct.

Owns lanes, their queues and the thread that works through them. Between two ops it looks at shares, suspends and
cancels, so every control verb takes effect at the next op (CONTRACTS H15). Runnable lanes take turns, op by op.
Invariant: steps of one lane run one after another in order of submission; a lane without a share unit, or suspended,
does not move.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from plait.core.errors import InvariantError, ModelError
from plait.core.executor import ExecutorInfo, StepForm
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import Leave, SeqResult, SeqStatus, StepPlan, StepResult, StepStatus, plan_fault
from plait.exec.reference.memory import CacheMemory
from plait.exec.reference.ops import RopeTable
from plait.exec.reference.step import SUPPORTED, Loaded, RowState, StepRun
from plait.exec.roster import GroupSlots, Roster
from plait.model.cache_layout import CacheLayout
from plait.model.ops import Attend, Rope, ValueId
from plait.model.program import Program
from plait.weights.table import WeightTable

LANES = (LaneId(0), LaneId(1))
QUEUE_DEPTH = 2


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    max_step_tokens: int = 512
    max_rows: int = 256
    threaded: bool = True
    """False: nothing runs until `advance` is called, one op a call; tests use it."""
    poison: bool = False
    """Fill every slot with NaN before it is written, so that a result that reads it shows."""
    observe_logits: Callable[[StepPlan, npt.NDArray[np.float32]], None] | None = None
    """Sees the logits [num_outputs, vocab_size] of every step: golden comparisons need all of them."""


@dataclass(slots=True, eq=False)
class _Job:
    """A submitted step."""

    run: StepRun
    start_s: float | None = None
    ops: Iterator[None] | None = None


@dataclass(slots=True, eq=False)
class _Lane:
    id: LaneId
    units: tuple[int, ...]
    suspended: bool = False
    queue: deque[_Job] = field(default_factory=deque)

    @property
    def runnable(self) -> bool:
        return bool(self.units) and not self.suspended and bool(self.queue)


class ReferenceExecutor:
    """Implements `plait.exec.loading.LoadableExecutor`. `now` is the engine clock's."""

    def __init__(self, config: ReferenceConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._loaded: Loaded | None = None
        self._fingerprint = ""
        self._rows: dict[SeqId, RowState] = {}
        self._lanes = {lane: _Lane(lane, (unit,)) for unit, lane in enumerate(LANES)}
        self._turn = 0
        self._finished: list[StepResult] = []
        self._wakes: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._fault: Exception | None = None
        self._thread: threading.Thread | None = None

    def load(self, programs: Mapping[str, Program], weights: WeightTable, layout: CacheLayout) -> None:
        """Take the program "step", its weights as float32, and cache memory. `ModelError` for what cannot be
        executed.
        """
        program = programs["step"]
        for op in program.ops:
            if not isinstance(op, SUPPORTED) or (isinstance(op, Attend) and op.group is None):
                raise ModelError(
                    f"{program.name} needs the operation {type(op).__name__}, which the reference executor does not "
                    "have; choose a model of another family"
                )
        self._loaded = Loaded(
            program=program,
            weights=_as_floats(program, weights),
            ropes={op: RopeTable(op) for op in program.ops if isinstance(op, Rope)},
            last_use=_last_use(program),
            memory=CacheMemory(layout, poison=self._config.poison),
            poison=self._config.poison,
            observe_logits=self._config.observe_logits,
        )
        self._roster = Roster(
            self._config.max_rows,
            [GroupSlots(g.num_blocks, tokens_per_block=g.tokens_per_block) for g in layout.groups],
        )
        self._fingerprint = f"reference-numpy{np.__version__}-f32-{weights.sha256[:16]}"
        if self._config.threaded:
            self._thread = threading.Thread(target=self._work, name="plait-reference", daemon=True)
            self._thread.start()

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            name="reference",
            lanes=LANES,
            share_units=len(LANES),
            forms=(StepForm.FUSED, StepForm.LANES),
            queue_depth=QUEUE_DEPTH,
            max_step_tokens=self._config.max_step_tokens,
            max_rows=self._config.max_rows,
            memory_bytes=0,
            formats=("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"),
            fingerprint=self._fingerprint,
            bit_exact=False,
        )

    def submit(self, plan: StepPlan) -> None:
        fault = plan_fault(plan)
        if fault is not None:
            raise InvariantError(fault)
        if plan.encodes:
            raise InvariantError(f"step {plan.step} encodes images, which this executor does not")
        if self._loaded is None:
            raise InvariantError("a step was submitted before a model was loaded")
        with self._changed:
            lane = self._lanes[plan.lane]
            if len(lane.queue) >= QUEUE_DEPTH:
                raise InvariantError(f"lane {plan.lane} has {QUEUE_DEPTH} steps; step {plan.step} came too early")
            seats = self._roster.apply(plan)
            for change in plan.roster:
                if isinstance(change, Leave):
                    self._rows.pop(change.seq, None)
            rows = {seat.seq: self._row(seat.seq, seat.join.history) for seat in seats}
            lane.queue.append(_Job(StepRun(self._loaded, plan, seats, rows)))
            self._changed.notify_all()

    def assign(self, shares: Mapping[LaneId, tuple[int, ...]]) -> None:
        units = [unit for given in shares.values() for unit in given]
        if len(set(units)) != len(units) or not set(units) <= set(range(len(LANES))):
            raise InvariantError(f"shares {dict(shares)} overlap or name units beyond {len(LANES) - 1}")
        with self._changed:
            for lane in self._lanes.values():
                lane.units = tuple(shares.get(lane.id, ()))
            self._changed.notify_all()

    def suspend(self, lane: LaneId) -> None:
        with self._changed:
            if self._lanes[lane].suspended:
                raise InvariantError(f"lane {lane} is suspended already; there is one level")
            self._lanes[lane].suspended = True

    def resume(self, lane: LaneId) -> None:
        with self._changed:
            if not self._lanes[lane].suspended:
                raise InvariantError(f"lane {lane} is not suspended")
            self._lanes[lane].suspended = False
            self._changed.notify_all()

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        with self._changed:
            for lane in self._lanes.values():
                for job in lane.queue:
                    if job.run.plan.step == step:
                        job.run.cancelled.update(seqs)

    def collect(self) -> list[StepResult]:
        with self._changed:
            if self._fault is not None:
                raise InvariantError(f"the reference executor stopped: {self._fault}") from self._fault
            finished, self._finished = self._finished, []
            for result in finished:
                self._roster.settle(result)
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
        if job.ops is None:
            job.ops, job.start_s = job.run.run(), self._now()
        if job.run.is_dead:
            self._end(lane, job, StepStatus.CANCELLED, job.run.seq_results())
            return
        try:
            with np.errstate(all="ignore"):
                next(job.ops)
        except StopIteration:
            self._end(lane, job, StepStatus.COMPLETED, job.run.seq_results())
        except (ValueError, IndexError, FloatingPointError, MemoryError) as fault:
            error = f"{type(fault).__name__} in the reference executor: {fault}"
            failed = tuple(SeqResult(chunk.seq, SeqStatus.FAILED, error=error) for chunk in job.run.plan.chunks)
            self._end(lane, job, StepStatus.FAILED, failed)

    def _end(self, lane: _Lane, job: _Job, status: StepStatus, seqs: tuple[SeqResult, ...]) -> None:
        plan = job.run.plan
        start_s = job.start_s if job.start_s is not None else self._now()
        result = StepResult(plan.step, plan.lane, status, start_s, self._now(), workers=1, seqs=seqs)
        with self._changed:
            lane.queue.popleft()
            self._finished.append(result)
        self._wake()

    def _wake(self) -> None:
        for wake in self._wakes:
            wake()

    def _row(self, seq: SeqId, history: tuple[int, ...]) -> RowState:
        if seq not in self._rows:
            self._rows[seq] = RowState(list(history))
        return self._rows[seq]


def _as_floats(program: Program, weights: WeightTable) -> dict[str, npt.NDArray[np.float32]]:
    return {name: np.ascontiguousarray(weights[name].dequantize()) for name in program.weights}


def _last_use(program: Program) -> dict[ValueId, int]:
    """The op behind which a value is dropped."""
    return {value: index for index, op in enumerate(program.ops) for value in op.inputs}
