"""An engine round: the whole engine in its thread, random clients on an event loop, and a meddler in a third thread.

Owns the engine from start to end, and the comparison of what every client got with the answer alone.
Invariant: a client who leaves, or whose deadline passes, got a beginning of that answer and nothing else.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from tests.conformance.serving import Answer
from tests.soak.questions import dressed
from tests.soak.subjects import Subject
from tests.soak.tally import Tally

from plait.assembly import assemble
from plait.core.client import ModelInfo
from plait.core.clock import RealClock
from plait.core.decision import Cancel
from plait.core.errors import EngineStopped, InvariantError, PlaitError, RequestError
from plait.core.events import Applied, Collected, Event, Finished, Preempted
from plait.core.ids import LaneId, RequestId
from plait.core.request import FinishReason, Request
from plait.core.step import STEP_PROGRAM
from plait.engine.client import AsyncClient
from plait.engine.engine import EngineConfig, Ports
from plait.engine.inbox import Inbox
from plait.engine.thread import EngineThread
from plait.exec.native.executor import NativeConfig, NativeExecutor
from plait.kv.cache import KVCache

STEPS, SPARE = LaneId(0), LaneId(1)
MOST_WORKERS = 3
LONGEST_REST_S = 0.004
REST_TO_EMPTY_S = 20.0
PATIENCE_S = 300.0
"""A round takes seconds; who has no answer by then will never get one."""
ENDED = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything there is in a round; random numbers are drawn up to these."""

    questions: int
    asks: int
    prompt_tokens: int
    output_tokens: int
    longest_stay_s: float
    """Whoever leaves, or has a deadline, does so within this time."""


TINY = Load(questions=14, asks=40, prompt_tokens=280, output_tokens=40, longest_stay_s=0.15)
REAL = Load(questions=8, asks=20, prompt_tokens=90, output_tokens=14, longest_stay_s=1.5)


class Meddler(threading.Thread):
    """Moves workers between lanes and suspends the lane that works, at random moments, until it is told to stop."""

    def __init__(self, executor: NativeExecutor, workers: int, seed: int, tally: Tally) -> None:
        super().__init__(name="meddler")
        self._executor = executor
        self._workers = workers
        self._random = random.Random(seed)
        self._tally = tally
        self._over = threading.Event()

    def run(self) -> None:
        try:
            self._meddle()
        except (PlaitError, InvariantError) as fault:
            self._tally.differences.append(f"a control verb was refused: {fault}")

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _meddle(self) -> None:
        while not self._over.wait(self._random.random() * LONGEST_REST_S):
            if self._random.random() < 0.5:
                self._pause()
            else:
                self._share()
        self._assign(self._workers)

    def _pause(self) -> None:
        self._executor.suspend(STEPS)
        self._rest()
        self._executor.resume(STEPS)
        self._tally.add("suspends")

    def _share(self) -> None:
        """For a moment no worker at all, or whichever there are; then some."""
        self._assign(self._random.randint(0, self._workers))
        self._rest()
        self._assign(self._random.randint(1, self._workers))

    def _assign(self, kept: int) -> None:
        units = list(range(self._workers))
        self._random.shuffle(units)
        self._executor.assign({STEPS: tuple(units[:kept]), SPARE: tuple(units[kept:])})
        self._tally.add("assigns")

    def _rest(self) -> None:
        time.sleep(self._random.random() * LONGEST_REST_S * self._random.random())


@dataclass(slots=True, eq=False)
class Stage:
    """A running engine."""

    executor: NativeExecutor
    kv: KVCache
    client: AsyncClient
    clock: RealClock
    faults: list[str]


@contextmanager
def engine(subject: Subject, config: NativeConfig, cache_tokens: int, prefix: bool, tally: Tally) -> Iterator[Stage]:
    executor = NativeExecutor(config)
    layout = subject.layout(cache_tokens)
    executor.load({STEP_PROGRAM: subject.program}, subject.weights, layout)
    clock, inbox, vocab_size = RealClock(), Inbox(), subject.program.vocab_size
    info = ModelInfo(subject.name, vocab_size, subject.max_positions, executor.info.fingerprint, True)
    client = AsyncClient(info, inbox)
    parts = assemble(
        EngineConfig(vocab_size, subject.max_positions, seed=17),
        layout,
        executor,
        clock,
        Ports(inbox, client, lambda event: note(tally, event)),
        eos_token_ids=subject.eos_token_ids,
        enable_prefix=prefix,
    )
    stage = Stage(executor, parts.kv, client, clock, [])
    thread = EngineThread(parts.engine, executor, inbox, client, stage.faults.append)
    thread.start()
    try:
        yield stage
        until = clock.now() + REST_TO_EMPTY_S
        while parts.kv.usage().used_bytes and clock.now() < until and not stage.faults:
            time.sleep(0.001)
        tally.add("units", int(executor.counters()["units"]))
    finally:
        thread.close()
    parts.kv.check()
    tally.check(parts.kv.usage().used_bytes == 0, f"{subject.name}: memory is left: {parts.kv.explain()}")
    tally.differences += stage.faults


def note(tally: Tally, event: Event) -> None:
    match event:
        case Collected():
            tally.add("steps")
        case Preempted():
            tally.add("preemptions")
        case Applied(_, Cancel()):
            tally.add("cancels")
        case Finished(num_cached=cached) if cached:
            tally.add("prefix hits")


def play(
    subject: Subject,
    load: Load,
    questions: Sequence[Request],
    alone: Mapping[tuple[RequestId, int], Answer],
    seed: int,
    tally: Tally,
) -> None:
    dice = np.random.default_rng(seed)
    workers = int(dice.integers(1, MOST_WORKERS + 1))
    config = NativeConfig(
        (-1,) * workers,
        max_step_tokens=int(dice.choice([5, 33, 128, 512])),
        max_rows=int(dice.choice([3, 8, 32])),
        blocking_seed=int(dice.integers(0, 2) and dice.integers(1, 1 << 31)),
        poison=True,
    )
    longest = load.prompt_tokens + load.output_tokens + subject.tokens_per_block
    cache_tokens = int(longest * dice.choice([1.0, 1.5, 4.0, 10.0]))
    with engine(subject, config, cache_tokens, bool(dice.random() < 0.8), tally) as stage:
        meddler = Meddler(stage.executor, workers, seed, tally)
        meddler.start()
        try:
            crowd = Crowd(dice, load, questions, alone, tally, subject.name)
            asyncio.run(asyncio.wait_for(ask_all(stage, crowd), PATIENCE_S))
        except TimeoutError:
            tally.differences.append(
                f"{subject.name}: no answer in {PATIENCE_S:.0f} s: {stage.client.health()}, {stage.kv.explain()}"
            )
        finally:
            meddler.stop()


@dataclass(slots=True, eq=False)
class Crowd:
    """Who asks what."""

    dice: np.random.Generator
    load: Load
    questions: Sequence[Request]
    alone: Mapping[tuple[RequestId, int], Answer]
    tally: Tally
    name: str


async def ask_all(stage: Stage, crowd: Crowd) -> None:
    """Some at once, then others from time to time."""
    tasks: list[asyncio.Task[None]] = []
    pause_s = crowd.load.longest_stay_s / 10
    for index in range(crowd.load.asks):
        question = crowd.questions[int(crowd.dice.integers(len(crowd.questions)))]
        visitor = Visitor(stage, crowd, question, dressed(crowd.dice, question, f"ask-{index}"))
        tasks.append(asyncio.create_task(visitor.visit()))
        if crowd.dice.random() < 0.3:
            await asyncio.sleep(crowd.dice.random() * pause_s)
    await asyncio.gather(*tasks)


@dataclass(slots=True, eq=False)
class Visitor:
    """Asks one question once, and may not wait for all of the answer."""

    stage: Stage
    crowd: Crowd
    question: Request
    request: Request
    got: dict[int, Answer] = field(default_factory=dict)

    async def visit(self) -> None:
        dice, load, tally = self.crowd.dice, self.crowd.load, self.crowd.tally
        self.got = {choice: Answer() for choice in range(self.request.n)}
        stay_s = float(dice.random()) * load.longest_stay_s
        way = str(dice.choice(["stay", "stay", "stay", "stay", "abort", "close", "break off", "deadline"]))
        try:
            match way:
                case "abort":
                    asyncio.get_running_loop().call_later(stay_s, self._abort)
                    await self._listen()
                case "close":
                    await self._listen(at_most=int(dice.integers(1, load.output_tokens)))
                case "break off":
                    await self._break_off(stay_s)
                case "deadline":
                    self.request = replace(self.request, deadline_s=self.stage.clock.now() + stay_s)
                    await self._listen()
                case _:
                    await self._listen()
        except RequestError as error:
            tally.check(way == "deadline", f"{self.crowd.name}: {self.request.id} was refused: {error}")
        except EngineStopped as error:
            tally.check(False, f"{self.crowd.name}: {error}")
        self._compare(way)

    def _abort(self) -> None:
        # Puts a message into the inbox and waits for nothing.
        task = asyncio.ensure_future(self.stage.client.abort(self.request.id))
        task.add_done_callback(lambda done: done.result())

    async def _break_off(self, stay_s: float) -> None:
        """As a server does whose client hung up."""
        listening = asyncio.create_task(self._listen())
        await asyncio.wait([listening], timeout=stay_s)
        listening.cancel()
        await asyncio.wait([listening])
        if not listening.cancelled():
            listening.result()

    async def _listen(self, at_most: int | None = None) -> None:
        async with aclosing(self.stage.client.submit(self.request)) as deltas:
            num_heard = 0
            async for delta in deltas:
                known = self.got[delta.choice]
                known.tokens += delta.tokens
                known.logprobs += delta.logprobs
                known.finish_reason, known.error = delta.finish_reason, delta.error
                num_heard += 1
                if num_heard == at_most:
                    return

    def _compare(self, way: str) -> None:
        """A whole answer, or a beginning: tokens and log-probabilities, to the last bit."""
        tally = self.crowd.tally
        for choice, got in self.got.items():
            right = self.crowd.alone[self.question.id, choice]
            tally.add("answers compared")
            tally.add("log-probabilities compared", sum(1 + len(one.top) for one in got.logprobs))
            whole = got.finish_reason in ENDED
            num = len(got.tokens)
            equal = got.tokens == right.tokens[:num] and got.logprobs == right.logprobs[: len(got.logprobs)]
            if whole:
                equal = equal and num == len(right.tokens) and got.finish_reason is right.finish_reason
            else:
                tally.add({"deadline": "deadlines"}.get(way, "aborts"))
                equal = equal and way != "stay"
            if not equal:
                tally.differences.append(
                    f"{self.crowd.name}: {self.request.id} as {self.question.id} ({way}, choice {choice}): "
                    f"{got} and alone {right}"
                )
