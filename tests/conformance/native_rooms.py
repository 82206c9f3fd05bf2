"""Native rooms: the native executor for `serving.py`, under every treatment that must not change a bit.

Owns clocks under which an engine that has nothing left to do is still ticked, and which may meddle: whenever the
engine waits, they give the lane other cores, or suspend and resume it.
Invariants: a lane that was meddled with can always move again, so that nothing hangs; unless workers are left to
themselves, which tick sees which step end is drawn by a seed, so that counts of hits and preemptions are the same on
every machine, however long its workers take.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.conformance.serving import Room, Setup

from plait.core.clock import Clock, RealClock, WaitSource
from plait.core.ids import LaneId
from plait.core.step import StepPlan, StepResult
from plait.exec.native.executor import NativeConfig, NativeExecutor
from plait.exec.native.packing import WeightDtype
from plait.model.cache_type import CacheType

STEPS, SPARE = LaneId(0), LaneId(1)
"""The lane that the scheduler uses, and one that takes cores away from it."""
LONGEST_PAUSE_S = 0.0005
LONGEST_WAIT_S = 0.02
"""Nobody arrives in the middle of a wait here: whoever serves looks by himself whether all is answered."""
PATIENCE_S = 100.0


@dataclass(frozen=True, slots=True)
class Treatment:
    """How the executor is set up and disturbed."""

    threads: int = 2
    lanes: int = 2
    target: str | None = None
    blocking_seed: int = 0
    meddling_seed: int | None = None
    cache_type: CacheType = CacheType.F16
    dtype: WeightDtype = WeightDtype.AUTO
    paced: bool = True
    """Whether steps come back when a seed says so. Else when workers are done, and then no count may be asserted."""

    def __call__(self, setup: Setup) -> Room:
        config = NativeConfig(
            cores=cores(self.threads),
            max_step_tokens=setup.max_step_tokens,
            max_rows=setup.max_rows,
            dtype=self.dtype,
            target=self.target,
            num_lanes=self.lanes,
            blocking_seed=self.blocking_seed,
            poison=True,
        )
        make = PacedExecutor if self.paced else NativeExecutor
        executor = make(config)
        meddler = None if self.meddling_seed is None else Meddler(executor, self.threads, self.meddling_seed)
        clock: Clock = TickingClock(meddler)
        if isinstance(executor, PacedExecutor):
            clock = PacedClock(executor, self.blocking_seed, meddler)

        def make_draft() -> NativeExecutor:
            draft = make(replace(config, num_lanes=1), executor)
            if isinstance(executor, PacedExecutor) and isinstance(draft, PacedExecutor):
                executor.beside = draft
            return draft

        return Room(executor, clock, self.cache_type, make_draft)


def cores(threads: int) -> tuple[int, ...]:
    """One usable processor each; with too few of them nobody is bound to one."""
    usable = sorted(os.sched_getaffinity(0))
    return tuple(usable[:threads]) if threads <= len(usable) else (-1,) * threads


class Meddler:
    """Changes the executor's lanes at random, seeded."""

    def __init__(self, executor: NativeExecutor, threads: int, seed: int) -> None:
        self._executor = executor
        self._threads = threads
        self._random = random.Random(seed)
        self._verbs: tuple[Callable[[], None], ...] = (self._share, self._pause, lambda: None)

    def __call__(self) -> None:
        self._random.choice(self._verbs)()

    def _share(self) -> None:
        """Takes cores away, for a moment all of them, and gives some back."""
        units = list(range(self._threads))
        self._random.shuffle(units)
        kept = self._random.randint(1, self._threads)
        self._executor.assign({STEPS: (), SPARE: tuple(units)})
        self._sleep()
        self._executor.assign({STEPS: tuple(units[:kept]), SPARE: tuple(units[kept:])})

    def _pause(self) -> None:
        self._executor.suspend(STEPS)
        self._sleep()
        self._executor.resume(STEPS)

    def _sleep(self) -> None:
        time.sleep(self._random.random() * LONGEST_PAUSE_S)


class TickingClock:
    """Real time, in short waits."""

    def __init__(self, meddle: Callable[[], None] | None) -> None:
        self._clock = RealClock()
        self._meddle = meddle

    def now(self) -> float:
        return self._clock.now()

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        if self._meddle is not None:
            self._meddle()
        soon = self.now() + LONGEST_WAIT_S
        self._clock.wait(*sources, until=soon if until is None else min(soon, until))


class PacedExecutor(NativeExecutor):
    """Computes as ever, and shows what has ended only when it is told to, the oldest step first. For one lane."""

    def __init__(self, config: NativeConfig, pool_of: NativeExecutor | None = None) -> None:
        super().__init__(config, pool_of)
        self.beside: PacedExecutor | None = None
        """That of a draft model."""
        self._num_hidden = 0
        """Steps that were submitted and not shown."""
        self._ended: deque[StepResult] = deque()
        self._shown: list[StepResult] = []

    def show(self, num_steps: int) -> None:
        """Wait for so many steps, or for all there are."""
        for _ in range(min(num_steps, self._num_hidden)):
            while not self._ended:
                assert self.wait_finished(PATIENCE_S), "a step never ends"
                self._ended += super().collect()
            self._shown.append(self._ended.popleft())
            self._num_hidden -= 1

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        self._num_hidden += 1

    def collect(self) -> list[StepResult]:
        shown, self._shown = self._shown, []
        return shown

    def ready(self) -> bool:
        return bool(self._shown)


class PacedClock:
    """A millisecond passes whenever somebody waits, and meanwhile no step ends, or one, or two."""

    def __init__(self, executor: PacedExecutor, seed: int, meddle: Callable[[], None] | None) -> None:
        self._executor = executor
        self._random = random.Random(seed)
        self._meddle = meddle
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        if self._meddle is not None:
            self._meddle()
        self._now_s += 0.001
        self._executor.show(self._random.choice((0, 1, 1, 1, 2)))
        if self._executor.beside is not None:
            self._executor.beside.show(self._random.choice((0, 1, 2)))
