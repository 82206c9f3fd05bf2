"""The native executor: programs on CPU cores, bit for bit the same under every load.

Owns the way of plans into csrc/runtime and of results out of it. Python only hands over: from submit to collect a step
needs no Python thread, and no native thread ever calls Python.
Invariant: a plan that reaches the runtime passed `Intake` and `PlanLimits`; the runtime checks nothing again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from plait import _native
from plait.core.clock import Wake
from plait.core.errors import InvariantError, UsageError
from plait.core.executor import ExecutorInfo, StepForm
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import STEP_PROGRAM, Join, StepPlan, StepResult
from plait.exec.intake import Intake
from plait.exec.loading import LogitsObserver, Numbers
from plait.exec.native.blocking import Blocking, gemm_entries, product_names
from plait.exec.native.checks import CACHE_CODES, check_layout, check_program
from plait.exec.native.fingerprint import fingerprint
from plait.exec.native.lowering import lower
from plait.exec.native.op_names import op_names
from plait.exec.native.packing import WeightDtype, kept_texts, pack, schemes_of, vectors
from plait.exec.native.results import step_result
from plait.exec.native.rope_table import tables
from plait.exec.native.tape import CacheCode, Scheme, Tape
from plait.exec.native.work_log import RECORD_EVENTS, NativeWorkLog
from plait.exec.plan_limits import PlanLimits
from plait.exec.roster import slots_of
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.ops import Pairing
from plait.model.program import Program
from plait.weights.table import WeightTable

QUEUE_DEPTH = 2
FORMATS = tuple(scheme.name.lower() for scheme in Scheme)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """`cores`: one worker each, bound to that processor; -1: bound to none."""

    cores: tuple[int, ...]
    max_step_tokens: int = 512
    max_rows: int = 256
    dtype: WeightDtype = WeightDtype.AUTO
    num_lanes: int = 2
    """One that is never used takes no memory."""
    max_positions: int | None = None
    """Rotary tables end here; None: where the model's do."""
    target: str | None = None
    """The instruction set to compute with; None: the best that runs here. All give the same bits."""
    blocking_seed: int = 0
    """Not 0: work is cut at random, drawn from this. Tests use it: answers must not change."""
    poison: bool = False
    """Fill every slot with NaN before it is written, so that a result that reads it shows."""
    records_work: bool = False
    """Workers record what they do, for `NativeExecutor.work_log`."""
    observe_logits: LogitsObserver | None = None
    """Sees the logits [num_outputs, vocab_size] of every step when it is collected: golden comparisons need them."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory that the executor keeps, in bytes."""

    weights: int
    cache: int
    """All of the pool; it is taken from the system as blocks are first written."""
    arena: int
    """Activations of one lane's steps and scratch of workers."""
    lane: int
    """Activations of each further lane, taken when it is used."""


@dataclass(slots=True, eq=False)
class _Row:
    """A joined sequence. `unchecked`: no chunk of it has come yet."""

    seat: _native.Seat
    join: Join
    unchecked: bool = True


@dataclass(slots=True, eq=False)
class _Loaded:
    """What there is once a model was loaded."""

    runtime: _native.Runtime
    intake: Intake
    footprint: Footprint
    numbers: Numbers
    work_log: NativeWorkLog | None
    products: Mapping[int, str]
    """Names of the tape's products, by operation."""
    kept: tuple[str, ...]
    rows: dict[SeqId, _Row] = field(default_factory=dict)
    plans: dict[StepId, StepPlan] = field(default_factory=dict)
    """Of steps in flight."""


class NativeExecutor:
    """Implements `plait.exec.loading.LoadableExecutor`. Its times are those of `time.monotonic`."""

    def __init__(self, config: NativeConfig, pool_of: NativeExecutor | None = None) -> None:
        """`pool_of`: an executor that is loaded, whose cache memory this one has, too. Blocks of both are granted from
        one list.
        """
        self._config = config
        self._pool_of = pool_of
        self._lanes = tuple(map(LaneId, range(config.num_lanes)))
        self._fingerprint = ""
        self._pools = False
        self._state: _Loaded | None = None
        self._wake: Wake | None = None
        self._closed = False
        self._lock = threading.Lock()

    def load(self, programs: Mapping[str, Program], weights: WeightTable, layout: CacheLayout) -> None:
        if self._state is not None:
            raise InvariantError("the native executor is loaded already")
        program = programs[STEP_PROGRAM]
        check_program(program)
        check_layout(layout)
        schemes = schemes_of(program, weights, self._config.dtype)
        tape = lower(program, schemes)
        codes = [CACHE_CODES[placed.cache_type] for placed in layout.groups]
        self._fingerprint = fingerprint(weights.short_identity, schemes.values(), codes, tape.ropes)
        limits = self._limits(program, layout)
        self._pools = limits.pools
        # Packing lets the file's pages go, so whatever else is read comes before it.
        floats = vectors(tape, weights)
        panels = pack(tape, weights, schemes, len(self._config.cores))
        runtime = self._runtime(tape, panels, floats, layout, limits.num_positions)
        footprint = Footprint(panels.num_bytes, layout.pool_bytes, runtime.arena_bytes, runtime.lane_bytes)
        intake = Intake(self.info, slots_of(layout), limits.fault)
        numbers = numbers_of(schemes.values(), codes)
        names = product_names(tape, schemes, weights)
        log = NativeWorkLog(op_names(program, tape, schemes), len(self._config.cores))
        self._state = _Loaded(
            runtime,
            intake,
            footprint,
            numbers,
            log if self._config.records_work else None,
            names,
            kept_texts(weights, schemes),
        )

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            name="native",
            lanes=self._lanes,
            share_units=len(self._config.cores),
            forms=(StepForm.FUSED, StepForm.LANES),
            queue_depth=QUEUE_DEPTH,
            max_step_tokens=self._config.max_step_tokens,
            max_rows=self._config.max_rows,
            memory_bytes=0,
            formats=FORMATS,
            fingerprint=self._fingerprint,
            bit_exact=True,
            pools=self._pools,
            drafts=True,
        )

    @property
    def footprint(self) -> Footprint:
        return self._loaded().footprint

    @property
    def numbers(self) -> Numbers:
        return self._loaded().numbers

    @property
    def kept(self) -> tuple[str, ...]:
        """A line on each format of the file whose weights take more memory than there."""
        return self._loaded().kept

    @property
    def target(self) -> str:
        """The instruction set that it computes with."""
        return self._loaded().runtime.target

    @property
    def products(self) -> tuple[str, ...]:
        """Names of its products, each once."""
        return tuple(sorted(set(self._loaded().products.values())))

    def retune(self, blocking: Blocking) -> None:
        """Cut steps so from now on. `UsageError`: a number is out of its limits. Only while nothing is under way."""
        state = self._loaded()
        with self._lock:
            try:
                state.runtime.retune(blocking.sizes, gemm_entries(blocking, state.products))
            except ValueError as error:
                raise UsageError(f"the tune table cannot be used: {error}") from None

    def submit(self, plan: StepPlan) -> None:
        state = self._loaded()
        with self._lock:
            if self._closed:
                raise InvariantError(f"step {plan.step} was submitted to a closed executor")
            state.intake.submit(plan)
            rows = state.rows
            for change in plan.roster:
                if isinstance(change, Join):
                    rows[change.seq] = _Row(state.runtime.join(change), change)
                else:
                    # Steps in flight keep the seat; a sequence that joins anew gets another.
                    rows.pop(change.seq, None)
            seats = []
            for chunk in plan.chunks:
                row = rows[chunk.seq]
                if row.unchecked:
                    _check_history(chunk.start, row.join)
                    row.unchecked = False
                seats.append(row.seat)
            state.plans[plan.step] = plan
            state.runtime.submit(plan, seats, [rows[grant.seq].seat for grant in plan.blocks])

    def assign(self, shares: Mapping[LaneId, tuple[int, ...]], *, may_help: bool = False) -> None:
        state = self._loaded()
        with self._lock:
            state.intake.check_shares(shares)
            state.runtime.assign([shares[lane] for lane in self._lanes], may_help)

    def suspend(self, lane: LaneId) -> None:
        state = self._loaded()
        with self._lock:
            state.intake.suspend(lane)
            state.runtime.suspend(lane)

    def resume(self, lane: LaneId) -> None:
        state = self._loaded()
        with self._lock:
            state.intake.resume(lane)
            state.runtime.resume(lane)

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        state = self._loaded()
        with self._lock:
            state.runtime.cancel(step, list(seqs))

    def collect(self) -> list[StepResult]:
        state = self._state
        if state is None:
            return []
        with self._lock:
            results = [step_result(state.plans[StepId(report[0])], report) for report in state.runtime.collect()]
            for result in results:
                plan = state.plans.pop(result.step)
                if self._config.observe_logits is not None and plan.chunks:
                    self._config.observe_logits(plan, state.runtime.take_logits(plan.step))
            state.intake.collect(results)
            if state.work_log is not None and results:
                state.work_log.add(state.runtime.take_work(), [result.step for result in results], state.plans)
        return results

    def ready(self) -> bool:
        return self._state is not None and not self._closed and self._state.runtime.has_finished()

    def wait_finished(self, timeout_s: float) -> bool:
        """Whether there is something to collect, at the latest after `timeout_s`; for who has nothing else to do."""
        return self._loaded().runtime.wait_finished(timeout_s)

    def subscribe(self, wake: Wake) -> None:
        """One clock waits for this executor: native threads write to its descriptor and call nothing."""
        if self._wake is not None:
            raise InvariantError("a clock waits for the native executor already; there can be one")
        self._wake = wake
        self._loaded().runtime.notify(wake.fd)

    def next_s(self) -> float | None:
        return None

    @property
    def work_log(self) -> NativeWorkLog | None:
        """What the workers did, if that is recorded."""
        return self._loaded().work_log

    def change_delays(self) -> tuple[tuple[float, ...], tuple[int, ...], float]:
        """How long workers took to look at a change of shares or a suspension: upper bounds of buckets in seconds, how
        many delays fell into each (one bucket more than bounds), and their sum in seconds.
        """
        return self._loaded().runtime.change_delays()

    def own_change_delays(self) -> tuple[tuple[float, ...], tuple[int, ...], float]:
        """For how long of that they ran themselves: to the end of a unit. The rest of it others had their cores."""
        return self._loaded().runtime.own_change_delays()

    def counters(self) -> dict[str, float]:
        """What the workers did since the start: units, steps, seconds in kernels, at work and parked."""
        return self._loaded().runtime.counters()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._state is not None:
                # The descriptor may go before the last worker does, and its number to somebody else.
                self._state.runtime.notify(-1)
                self._state.runtime.close()
                if self._state.work_log is not None:
                    self._state.work_log.add(self._state.runtime.take_work())

    def _loaded(self) -> _Loaded:
        if self._state is None:
            raise InvariantError("the native executor was used before a model was loaded")
        return self._state

    def _limits(self, program: Program, layout: CacheLayout) -> PlanLimits:
        limits = PlanLimits.of(program, layout)
        most = limits.num_positions if self._config.max_positions is None else self._config.max_positions
        return replace(limits, num_positions=min(limits.num_positions, most))

    def _runtime(
        self, tape: Tape, panels: _native.Panels, floats: Sequence[Floats], layout: CacheLayout, num_positions: int
    ) -> _native.Runtime:
        config = self._config
        return _native.Runtime(
            tape,
            panels,
            list(floats),
            [(*tables(use, num_positions), use.pairing is Pairing.INTERLEAVED) for use in tape.ropes],
            [_group(placed) for placed in layout.groups],
            layout.pool_bytes,
            list(config.cores),
            len(self._lanes),
            config.max_step_tokens,
            config.target or "",
            config.blocking_seed,
            config.poison,
            config.observe_logits is not None,
            RECORD_EVENTS if config.records_work else 0,
            None if self._pool_of is None else self._pool_of._loaded().runtime,
        )


def numbers_of(schemes: Iterable[Scheme], cache: Iterable[CacheCode]) -> Numbers:
    used = set(schemes)
    return Numbers(
        weights=tuple(sorted(scheme.name.lower() for scheme in used)),
        rows=tuple(sorted({"int8" if scheme.is_integer else "f32" for scheme in used})),
        cache=tuple(sorted({code.name.lower() for code in cache})),
    )


def usable_targets() -> tuple[str, ...]:
    """Instruction sets that kernels were built for and this machine has, the best one last."""
    return _native.targets()


def _group(placed: GroupLayout) -> tuple[int, ...]:
    """In the order of GroupSpec in csrc/runtime/tape.h."""
    group = placed.group
    return (
        placed.num_blocks,
        placed.block_bytes,
        placed.layer_bytes,
        placed.head_bytes,
        group.num_layers,
        placed.tokens_per_block,
        group.num_kv_heads,
        group.head_dim_k,
        group.head_dim_v,
        CACHE_CODES[placed.cache_type],
    )


def _check_history(start: int, join: Join) -> None:
    if join.params.has_penalties and len(join.history) != start:
        raise InvariantError(
            f"sequence {join.seq} has penalties and starts behind {start} tokens, but joined with "
            f"{len(join.history)} of them"
        )
