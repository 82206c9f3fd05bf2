"""A live engine: real clock, real threads, a client on a real event loop, and a device that a test can hold or break.

Nothing here waits without a limit: what should happen at once and does not is a failure after `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from tests.unit.api.byte_text import MODEL, byte_text
from tests.unit.engine.kit import BLOCK_TOKENS, EOS, INFO, letter_at
from tests.unit.kv.kit import full_groups, make_layout

from plait.assembly import assemble
from plait.core.clock import RealClock
from plait.core.errors import InvariantError
from plait.core.events import Event, Finished
from plait.core.executor import ExecutorInfo
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import Chunk, Join, SeqResult, SeqStatus, StepPlan, StepResult, StepStatus
from plait.engine.client import AsyncClient
from plait.engine.engine import EngineConfig, Ports
from plait.engine.inbox import Inbox
from plait.engine.thread import EngineThread
from plait.exec.foretold import chunk_result
from plait.text.stream import text_stream_factory

T = TypeVar("T")
PATIENCE_S = 30.0


def within_patience(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine on a loop of its own."""
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


class HeldExecutor:
    """An `Executor` with a thread of its own, whose steps end when they may; `fault` breaks the next collect."""

    def __init__(self) -> None:
        self.fault: InvariantError | None = None
        self._num_allowed: float = math.inf
        self.started = threading.Semaphore(0)
        """Counts the steps that were submitted."""
        self.is_closed = False
        self._joins: dict[SeqId, Join] = {}
        self._cancelled: set[SeqId] = set()
        self._queue: list[StepPlan] = []
        self._finished: list[StepResult] = []
        self._wakes: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="held-executor", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ExecutorInfo:
        return replace(INFO, max_rows=4)

    def submit(self, plan: StepPlan) -> None:
        with self._changed:
            self._joins |= {change.seq: change for change in plan.roster if isinstance(change, Join)}
            self._queue.append(plan)
            self._changed.notify()
        self.started.release()

    def assign(self, shares: Mapping[LaneId, tuple[int, ...]], *, may_help: bool = False) -> None:
        raise InvariantError("one lane is enough here")

    def suspend(self, lane: LaneId) -> None:
        raise InvariantError("one lane is enough here")

    def resume(self, lane: LaneId) -> None:
        raise InvariantError("one lane is enough here")

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        with self._changed:
            self._cancelled.update(seqs)

    def collect(self) -> list[StepResult]:
        with self._changed:
            if self.fault is not None:
                raise self.fault
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify()
        self._thread.join(PATIENCE_S)

    def ready(self) -> bool:
        return bool(self._finished) or self.fault is not None

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    def next_s(self) -> float | None:
        return None

    def hold(self) -> None:
        """From now on no step ends unless it is let."""
        with self._changed:
            self._num_allowed = 0

    def let(self, count: float = math.inf) -> None:
        """So many steps may end; by default all."""
        with self._changed:
            self._num_allowed += count
            self._changed.notify()

    def break_down(self, reason: str) -> None:
        self.fault = InvariantError(reason)
        for wake in self._wakes:
            wake()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: (self._queue and self._num_allowed > 0) or self.is_closed)
                if self.is_closed:
                    return
                plan = self._queue.pop(0)
                self._num_allowed -= 1
                seqs = tuple(self._result(chunk) for chunk in plan.chunks)
                is_dead = all(one.status is SeqStatus.CANCELLED for one in seqs)
                status = StepStatus.CANCELLED if is_dead else StepStatus.COMPLETED
                self._finished.append(StepResult(plan.step, plan.lane, status, 0.0, 0.0, 1, seqs))
            for wake in self._wakes:
                wake()

    def _result(self, chunk: Chunk) -> SeqResult:
        if chunk.seq in self._cancelled:
            return SeqResult(chunk.seq, SeqStatus.CANCELLED)
        return chunk_result(chunk, self._joins[chunk.seq], letter_at)


class Live:
    """Everything that serves, put together as `plait.build` does, over a device that computes nothing."""

    def __init__(self, on_event: Callable[[Event], None], report: Callable[[str], None]) -> None:
        self.events: list[Event] = []
        self.device = HeldExecutor()
        self.inbox = Inbox()
        self.client = AsyncClient(MODEL, self.inbox)
        self.finished = threading.Semaphore(0)
        """Counts the sequences that have ended."""
        self._on_event = on_event
        parts = assemble(
            EngineConfig(MODEL.vocab_size, MODEL.max_model_tokens),
            make_layout(64, full_groups(1), 1, BLOCK_TOKENS),
            self.device,
            RealClock(),
            Ports(self.inbox, self.client, self._tell, text_stream_factory(byte_text().tokenizer)),
            eos_token_ids=(EOS,),
        )
        self.scheduler = parts.scheduler
        self.thread = EngineThread(parts.engine, self.device, self.inbox, self.client, report)

    def wait_for_end(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.finished.acquire(timeout=PATIENCE_S), "a sequence should have ended"

    def wait_for_step(self) -> None:
        assert self.device.started.acquire(timeout=PATIENCE_S), "a step should have been submitted"

    def close(self) -> None:
        """Close from another thread, as a loop does that must not be held up."""
        closer = threading.Thread(target=self.thread.close, daemon=True)
        closer.start()
        closer.join(PATIENCE_S)
        assert not closer.is_alive(), "closing hangs"

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        self._on_event(event)
        if isinstance(event, Finished):
            self.finished.release()


@contextmanager
def live(
    on_event: Callable[[Event], None] = lambda event: None, report: Callable[[str], None] | None = None
) -> Iterator[Live]:
    """A started engine. Unless `report` is given, a fault of the engine's own fails the test."""
    faults: list[str] = []
    running = Live(on_event, report or faults.append)
    running.thread.start()
    try:
        yield running
    finally:
        running.close()
    assert faults == [], faults
