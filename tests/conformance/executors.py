"""The executors under test. One line in `EXECUTORS` adds one.

Owns how each is made ready and how it is given time to work; everything else goes through the Executor protocol.
Invariant: a test never asks which executor it drives, only what the bench says it can check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from tests.conformance.models import VOCAB_SIZE, TinyModel

from plait.core.clock import RealClock, SimClock
from plait.core.executor import Executor, ExecutorInfo, StepForm
from plait.core.ids import LaneId, SeqId
from plait.core.step import STEP_PROGRAM
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.exec.foretold import TokenSource
from plait.exec.loading import LoadableExecutor
from plait.exec.native import presence
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.exec.roster import slots_of
from plait.exec.simulated import SimulatedExecutor
from plait.model.cache_layout import CacheLayout
from plait.model.cost import Formats

MAX_STEP_TOKENS = 128
MAX_ROWS = 8
MOMENT_S = 0.0001
QUANTA_PER_STEP = 16
BLOCKING_SEED = 7


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """An executor with a model in it."""

    executor: Executor
    advance: Callable[[], object]
    """Let it work: for one op where that can be told, else for a moment."""
    computes: bool
    """Its numbers are the model's. Else its tokens are those of `Foretold` and its log-probabilities 0."""
    late_steps: int | None
    """How many steps of a lane may still end when the lane is told to rest; None: whatever was about to end."""


@dataclass(frozen=True, slots=True)
class Foretold:
    """Which token stands where, for executors that compute nothing."""

    known: Mapping[tuple[SeqId, int], int]

    def token(self, seq: SeqId, position: int) -> int:
        return self.known.get((seq, position), (7 * seq + 13 * position) % VOCAB_SIZE)


NOTHING_KNOWN = Foretold({})

MakeBench = Callable[[TinyModel, CacheLayout, Foretold], Bench]


def by_op(model: TinyModel, layout: CacheLayout, foretold: Foretold) -> Bench:
    config = ReferenceConfig(max_step_tokens=MAX_STEP_TOKENS, max_rows=MAX_ROWS, threaded=False, poison=True)
    executor = ReferenceExecutor(config, monotonic)
    return Bench(load(executor, model, layout), executor.advance, computes=True, late_steps=0)


def by_itself(make: Callable[[Callable[[], float]], LoadableExecutor]) -> MakeBench:
    """An executor with workers of its own: time passes, and it has moved on."""

    def bench(model: TinyModel, layout: CacheLayout, foretold: Foretold) -> Bench:
        clock = RealClock()
        executor = load(make(clock.now), model, layout)
        return Bench(
            executor, lambda: clock.wait(executor, until=clock.now() + MOMENT_S), computes=True, late_steps=None
        )

    return bench


def load(executor: LoadableExecutor, model: TinyModel, layout: CacheLayout) -> LoadableExecutor:
    executor.load({STEP_PROGRAM: model.program}, model.table(), layout)
    return executor


def threaded_reference(now: Callable[[], float]) -> LoadableExecutor:
    return ReferenceExecutor(ReferenceConfig(max_step_tokens=MAX_STEP_TOKENS, max_rows=MAX_ROWS, poison=True), now)


def simulated(model: TinyModel, layout: CacheLayout, foretold: Foretold) -> Bench:
    clock = SimClock()
    hardware = find_hardware("zen3-2core")
    cost = RooflineModel(model.program, Formats(), hardware)
    tokens: TokenSource = foretold.token
    executor = SimulatedExecutor(SIMULATED, slots_of(layout), clock, cost, tokens, QUANTA_PER_STEP)

    def advance() -> None:
        # A step's overhead is most of its price here, so this is about a quantum.
        clock.wait(until=clock.now() + hardware.step_overhead_s / QUANTA_PER_STEP)

    return Bench(executor, advance, computes=False, late_steps=1)


SIMULATED = ExecutorInfo(
    name="simulated",
    lanes=(LaneId(0), LaneId(1)),
    share_units=2,
    forms=(StepForm.FUSED, StepForm.LANES),
    queue_depth=2,
    max_step_tokens=MAX_STEP_TOKENS,
    max_rows=MAX_ROWS,
    memory_bytes=0,
    formats=(),
    fingerprint="simulated",
    bit_exact=False,
)


def native(_: Callable[[], float]) -> LoadableExecutor:
    """Two workers on whatever cores there are, work cut at random, and NaN in every slot before it is written."""
    from plait.exec.native.executor import NativeConfig, NativeExecutor

    return NativeExecutor(NativeConfig((-1, -1), MAX_STEP_TOKENS, MAX_ROWS, blocking_seed=BLOCKING_SEED, poison=True))


def _executors() -> dict[str, MakeBench]:
    """The native one is missing where Plait was installed without a compiler."""
    found = {"reference": by_op, "reference in a thread": by_itself(threaded_reference), "simulated": simulated}
    if presence.missing() is None:
        found["native"] = by_itself(native)
    return found


EXECUTORS: Mapping[str, MakeBench] = _executors()
