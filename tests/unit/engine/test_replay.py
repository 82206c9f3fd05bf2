"""Replay: what an engine logged, given to another executor of the same fingerprint, yields the same tokens.

The logged run has everything that makes plans hard to repeat: shared prefixes, several choices, penalties, preemptions,
and sequences cancelled in the middle of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from tests.conformance.models import VOCAB_SIZE, model_named

from plait.assembly import assemble
from plait.core.clock import WaitSource
from plait.core.decision import Cancel
from plait.core.events import Applied, Collected, Event, Preempted, Started, Submitted
from plait.core.ids import RequestId, SeqId, StepId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.core.step import STEP_PROGRAM, SeqResult, SeqStatus, StepResult
from plait.engine.engine import EngineConfig, Ports
from plait.engine.inbox import Abort, Arrive, Inbox
from plait.engine.outbox import NullOutbox
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor

NUM_PAGES, BLOCK_TOKENS = 10, 8
OPS_PER_WAIT = 5
"""Few, so that messages come in the middle of steps."""


def fresh_executor() -> ReferenceExecutor:
    model, ticks = model_named("causal"), count()
    executor = ReferenceExecutor(ReferenceConfig(24, 4, threaded=False, poison=True), lambda: float(next(ticks)))
    executor.load({STEP_PROGRAM: model.program}, model.table(), model.layout(NUM_PAGES, BLOCK_TOKENS))
    return executor


class OpClock:
    """A wait lasts until somebody is ready or a few ops are done."""

    def __init__(self, advance: Callable[[], bool]) -> None:
        self._now_s = 0.0
        self._advance = advance

    def now(self) -> float:
        return self._now_s

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        self._now_s += 1.0
        for _ in range(OPS_PER_WAIT):
            if any(source.ready() for source in sources) or not self._advance():
                return


def requests() -> list[Request]:
    shared = tuple(range(20))
    greedy, warm = SamplingParams(max_tokens=12), SamplingParams(temperature=1.0, seed=3, max_tokens=26)
    return [
        Request(RequestId("a"), (*shared, 50), greedy),
        Request(RequestId("b"), (*shared, 60, 61), warm, n=2),
        Request(RequestId("c"), tuple(range(40, 70)), replace(warm, repetition_penalty=1.3, logprobs=2)),
        Request(RequestId("gone"), tuple(range(5, 38)), greedy),
        *(Request(RequestId(f"grows {n}"), (70 + n,), replace(warm, seed=n, max_tokens=40)) for n in range(3)),
        Request(RequestId("d"), (*shared, 50), replace(warm, seed=9, frequency_penalty=0.5)),
    ]


def logged_run() -> list[Event]:
    log: list[Event] = []
    model, inbox, executor = model_named("causal"), Inbox(), fresh_executor()
    parts = assemble(
        EngineConfig(VOCAB_SIZE, 64),
        model.layout(NUM_PAGES, BLOCK_TOKENS),
        executor,
        OpClock(executor.advance),
        Ports(inbox, NullOutbox(), log.append),
    )
    waiting = requests()
    for tick in range(4000):
        if tick % 4 == 0 and waiting:
            inbox.put(Arrive(waiting.pop(0)))
        if any(isinstance(event, Submitted) and _names(event, SeqId(4)) for event in log[-2:]):
            inbox.put(Abort(RequestId("gone")))
        parts.engine.tick()
    assert parts.engine.health().num_running == parts.engine.health().num_waiting == 0
    return log


def _names(event: Submitted, seq: SeqId) -> bool:
    return any(chunk.seq == seq for chunk in event.plan.chunks)


def replayed(log: list[Event], executor: ReferenceExecutor) -> dict[StepId, StepResult]:
    """Give an executor what the log says was given, and wait where the log says that something came back."""
    results: dict[StepId, StepResult] = {}
    for event in log:
        match event:
            case Submitted(plan=plan):
                executor.submit(plan)
            case Applied(decision=Cancel(step=step, seqs=seqs)):
                executor.cancel(step, seqs)
            case Collected(result=result):
                while result.step not in results:
                    executor.advance()
                    results |= {given.step: given for given in executor.collect()}
            case _:
                pass
    return results


def computed(result: StepResult) -> list[SeqResult]:
    """What survived. When in a step a cancel came is not logged to the op, so the cancelled are left out."""
    return [one for one in result.seqs if one.status is SeqStatus.OK]


def test_a_log_given_to_a_fresh_executor_gives_the_same_tokens() -> None:
    log, executor = logged_run(), fresh_executor()
    results = replayed(log, executor)
    logged = [event.result for event in log if isinstance(event, Collected)]
    assert list(results) == [result.step for result in logged]
    for result in logged:
        assert computed(results[result.step]) == computed(result)
        assert results[result.step].status == result.status


def test_the_log_says_whose_bits_it_holds() -> None:
    started = logged_run()[0]
    assert isinstance(started, Started)
    assert started.info.fingerprint == fresh_executor().info.fingerprint


def test_the_logged_run_is_one_that_is_hard_to_repeat() -> None:
    log = logged_run()
    plans = [event.plan for event in log if isinstance(event, Submitted)]
    statuses = [one.status for event in log if isinstance(event, Collected) for one in event.result.seqs]
    assert any(isinstance(event, Preempted) for event in log)
    assert any(isinstance(event, Applied) for event in log)
    assert SeqStatus.CANCELLED in statuses
    assert max(len(plan.chunks) for plan in plans) >= 3
    assert any(chunk.start > 0 and chunk.num_tokens > 1 for plan in plans for chunk in plan.chunks)
