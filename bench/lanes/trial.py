"""Trial: streams that decode while prompts keep coming, under one policy, for a few seconds.

Owns the load, the window in which it is looked at, and what is kept of it: gaps of the streams, tokens of prompts that
were computed, what control cost. Knows no target and judges nothing.
Invariant: equal seeds give equal prompts; what is counted lies inside the window, steps that reach over its edges in
proportion.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as AnySequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import plait.sched.multiplex.scheduler as multiplex
from plait.build import LoadedModel, LocalEngine, start_engine
from plait.config.engine_options import EngineOptions
from plait.config.schedulers import parse_scheduler
from plait.core.decision import Decision, SeqUpdate, Submit
from plait.core.events import Collected, Emitted, Event, Started, Submitted
from plait.core.executor import ExecutorInfo
from plait.core.ids import RequestId, SeqId, StepId
from plait.core.request import Request, Sequence, ServiceClass, Slo
from plait.core.sampling import SamplingParams
from plait.core.step import StepResult, StepShape
from plait.metrics.histogram import Histogram
from plait.sched.multiplex import ahead
from plait.sched.multiplex.decide import Setting
from plait.sched.multiplex.situation import Choice, Situation
from plait.sched.multiplex.verifying import Verifying

STREAM_PROMPT, STREAM_TOKENS = 256, 4096
PROMPTS = (1024, 2048, 4096, 1536, 3072)
WARM_PROMPT, WARM_TOKENS = 576, 32
"""Of requests without targets that are all there at once before the streams begin, two for each, so that the cache has
been written where streams and prompts will write it. The first write of 2 MiB can cost a virtual machine 5 ms.
"""
CACHE_BYTES = 320 << 20
SETTLE_S = 0.5
PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True)
class Load:
    """`window_s`: how long prompts are looked at at least; None: until the one prompt of `only` tokens is computed."""

    streams: int = 8
    window_s: float | None = 5.0
    only: int = 4096
    seed: int = 1
    is_alone: bool = False
    """No prompts: what the streams' gaps are on this machine by themselves."""


@dataclass(slots=True)
class Step:
    """A step that was collected."""

    result: StepResult
    shape: StepShape
    prompt_tokens: int
    """Of sequences that had not said anything when it was planned."""
    seen_s: float
    """When the engine collected it."""
    said: list[SeqId] = field(default_factory=list)
    """Whose tokens came with it."""


@dataclass(slots=True)
class Heard:
    """An event sink. Times are the engine's."""

    info: ExecutorInfo | None = None
    steps: list[Step] = field(default_factory=list)
    emitted: dict[SeqId, list[float]] = field(default_factory=dict)
    planned: dict[StepId, tuple[StepShape, int]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        match event:
            case Started(info=info):
                self.info = info
            case Submitted(plan=plan):
                fresh = sum(chunk.num_tokens for chunk in plan.chunks if chunk.seq not in self.emitted)
                self.planned[plan.step] = (plan.shape(), fresh)
            case Collected(at_s=at_s, result=result):
                self.steps.append(Step(result, *self.planned.pop(result.step), at_s))
            case Emitted(at_s=at_s, seq=seq):
                self.emitted.setdefault(seq, []).append(at_s)
                self.steps[-1].said.append(seq)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Control:
    """Seconds of processor time. `decisions`: of each choice of a policy; `turns`: (planning and committing without
    choosing, sequences) of each step. `delays`: until workers took up what had been decided.
    """

    decisions: tuple[float, ...]
    turns: tuple[tuple[float, int], ...]
    delays: Histogram | None
    own_delays: Histogram | None
    """For how long of those the workers ran themselves; the rest of the time others had their cores."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two tokens of a stream, in the parts that make it up. Seconds."""

    whole_s: float
    before_s: float
    """From the end of the step before to the beginning of its own on the device: prompts alone, and the engine."""
    device_s: float
    late_s: float
    """By how much later the engine saw this end than the one before: below 0 if that was seen late."""
    step: Step


@dataclass(frozen=True, slots=True)
class Trial:
    gaps_s: tuple[float, ...]
    """Of the streams, inside the window."""
    prompt_tokens_per_s: float
    ttft_s: float | None
    """Of the only prompt, where there is one."""
    steps: tuple[Step, ...]
    gaps: tuple[Gap, ...]
    """Of one stream; a step brings all of them a token."""
    control: Control
    units: int

    def gap_s(self, part: float) -> float:
        ordered = sorted(self.gaps_s)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def run_trial(model: LoadedModel, options: EngineOptions, limit_s: float | None, load: Load) -> Trial:
    """Every request has `limit_s` as its bound on gaps; the streams begin first."""
    heard = Heard()
    slos = {} if limit_s is None else {ServiceClass.ONLINE: Slo(itl_s=limit_s)}
    with timed() as timers:
        engine = start_engine(options, model, heard, lambda words: None, slos=slos)
        # As `plait serve` does it: to look whether a model is garbage takes a tenth of a second, in which nobody runs.
        gc.collect()
        gc.freeze()
        try:
            begin_s, end_s, ttft_s = asyncio.run(_drive(engine, heard, load, model.program.vocab_size))
            delays, own_delays = [
                None if told is None else told() for told in (engine.change_delays, engine.own_delays)
            ]
        finally:
            engine.close()
            gc.unfreeze()
    assert heard.info is not None
    streams = list(heard.emitted)[2 * load.streams : 3 * load.streams]
    gaps = [
        later - earlier
        for seq in streams
        for earlier, later in zip(heard.emitted[seq], heard.emitted[seq][1:], strict=False)
        if begin_s <= earlier and later <= end_s
    ]
    tokens = sum(step.prompt_tokens * _inside(step.result, begin_s, end_s) for step in heard.steps)
    return Trial(
        tuple(gaps),
        tokens / (end_s - begin_s),
        ttft_s,
        tuple(step for step in heard.steps if begin_s <= step.result.start_s and step.result.end_s <= end_s),
        tuple(_gaps(heard.steps, streams[0], begin_s, end_s)),
        Control(tuple(timers.decisions), tuple(timers.turns), delays, own_delays),
        heard.info.share_units,
    )


def _gaps(steps: AnySequence[Step], stream: SeqId, begin_s: float, end_s: float) -> Iterator[Gap]:
    spoke = [step for step in steps if stream in step.said]
    for before, step in pairwise(spoke):
        if begin_s <= before.seen_s and step.seen_s <= end_s:
            one, other = before.result, step.result
            yield Gap(
                step.seen_s - before.seen_s,
                other.start_s - one.end_s,
                other.end_s - other.start_s,
                (step.seen_s - other.end_s) - (before.seen_s - one.end_s),
                step,
            )


def _inside(result: StepResult, begin_s: float, end_s: float) -> float:
    """Part of a step that lies in the window."""
    whole = max(1e-9, result.end_s - result.start_s)
    return max(0.0, min(end_s, result.end_s) - max(begin_s, result.start_s)) / whole


async def _drive(engine: LocalEngine, heard: Heard, load: Load, vocab_size: int) -> tuple[float, float, float | None]:
    """(begin, end) of the window, and when the only prompt had its token."""

    def words(number: int, count: int) -> tuple[int, ...]:
        return tuple((load.seed * 7919 + number * 104729 + place * 31) % vocab_size for place in range(count))

    async def ask(number: int, prompt: int, output: int, of: ServiceClass = ServiceClass.ONLINE) -> None:
        sampling = SamplingParams(seed=number, max_tokens=output, ignore_eos=True)
        request = Request(RequestId(f"ask-{number}"), words(number, prompt), sampling, service_class=of)
        async for delta in engine.client.submit(request):
            if delta.error is not None:
                raise SystemExit(f"a request failed: {delta.error}")

    async def prompts() -> None:
        for number in range(1000):
            await ask(load.streams + number, PROMPTS[(load.seed + number) % len(PROMPTS)], 1)

    num_warm = 2 * load.streams
    await asyncio.gather(*(ask(2000 + n, WARM_PROMPT, WARM_TOKENS, ServiceClass.BATCH) for n in range(num_warm)))
    streams = [asyncio.create_task(ask(number, STREAM_PROMPT, STREAM_TOKENS)) for number in range(load.streams)]

    def all_speak() -> bool:
        said = list(heard.emitted.values())[num_warm:]
        return len(said) >= load.streams and min(map(len, said)) > 4

    try:
        await _until(all_speak, streams)
        await asyncio.sleep(SETTLE_S)
        begin_s = time.monotonic()
        if load.window_s is None:
            await asyncio.wait_for(ask(load.streams, load.only, 1), PATIENCE_S)
            ttft_s = time.monotonic() - begin_s
            return begin_s, begin_s + ttft_s, ttft_s
        if load.is_alone:
            await asyncio.sleep(load.window_s)
            return begin_s, time.monotonic(), None
        others = asyncio.create_task(prompts())
        streams.append(others)
        until_s = begin_s + load.window_s
        # On to the end of a step with prompts in it, so that what was in flight then is not lost. The window ends
        # before: streams grow longer all the while, and whoever gives prompts little would be asked for longer.
        await _until(lambda: bool(_ends(heard, until_s)), streams)
        return begin_s, until_s, None
    finally:
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


def _ends(heard: Heard, from_s: float) -> list[float]:
    return [step.result.end_s for step in heard.steps if step.prompt_tokens and step.result.end_s >= from_s]


async def _until(holds: Callable[[], bool], tasks: list[asyncio.Task[None]]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        for task in tasks:
            if task.done():
                task.result()
        if time.monotonic() > until_s:
            raise SystemExit(f"nothing came of {PATIENCE_S:.0f} s; is the machine busy?")
        await asyncio.sleep(0.005)


@dataclass(slots=True)
class Timers:
    decisions: list[float] = field(default_factory=list)
    turns: list[tuple[float, int]] = field(default_factory=list)


@contextmanager
def timed() -> Iterator[Timers]:
    """The multiplexing scheduler with a clock around what it does, as it is served with."""
    timers = Timers()
    kind = multiplex.MultiplexScheduler
    plan, commit, decide, decide_ahead = kind.plan, kind.commit, Verifying.decide, ahead.decide
    spent = [0.0]

    def timed_decide(self: Verifying, now: Situation, running: AnySequence[Sequence]) -> Choice:
        begin = time.thread_time()
        choice = decide(self, now, running)
        timers.decisions.append(time.thread_time() - begin)
        spent[0] -= timers.decisions[-1]
        return choice

    def timed_ahead(now: Situation, setting: Setting) -> Choice:
        begin = time.thread_time()
        choice = decide_ahead(now, setting)
        timers.decisions.append(time.thread_time() - begin)
        spent[0] -= timers.decisions[-1]
        return choice

    def timed_plan(self: multiplex.MultiplexScheduler, now: float) -> list[Decision]:
        begin = time.thread_time()
        made = plan(self, now)
        spent[0] += time.thread_time() - begin
        for decision in made:
            if isinstance(decision, Submit):
                timers.turns.append((spent[0], len(decision.plan.chunks)))
                spent[0] = 0.0
        return made

    def timed_commit(self: multiplex.MultiplexScheduler, result: StepResult, now: float) -> list[SeqUpdate]:
        begin = time.thread_time()
        updates = commit(self, result, now)
        spent[0] += time.thread_time() - begin
        return updates

    kind.plan, kind.commit, Verifying.decide = timed_plan, timed_commit, timed_decide  # type: ignore[method-assign]
    ahead.decide = timed_ahead  # type: ignore[attr-defined]
    try:
        yield timers
    finally:
        kind.plan, kind.commit, Verifying.decide = plan, commit, decide  # type: ignore[method-assign]
        ahead.decide = decide_ahead  # type: ignore[attr-defined]


def with_scheduler(options: EngineOptions, scheduler: str, step_tokens: int | None = None) -> EngineOptions:
    return replace(
        options,
        scheduler=parse_scheduler(scheduler),
        max_num_batched_tokens=step_tokens or options.max_num_batched_tokens,
    )
