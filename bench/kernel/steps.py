"""Steps: K8, what a decode step takes besides its kernels, by the number of sequences.

Owns three ways to run the same steps: the executor with one step in flight, with two, as the engine has it, and the
whole engine with its scheduler, memory and client. What kernels take is what the runtime's counters say, divided among
its workers; waiting for one another is not theirs. Invariant: prompts are computed before the clock starts.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.plait_engine import open_model, running

from plait.build import LoadedModel, LocalEngine
from plait.config.engine_options import EngineOptions
from plait.config.machine import usable_processors
from plait.core.clock import Wake
from plait.core.ids import BlockId, GroupId, LaneId, RequestId, SeqId, StepId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Join, Leave, OutputKind, Outputs, StepPlan
from plait.exec.native.executor import NativeConfig, NativeExecutor
from plait.model.cache_layout import plan_layout
from plait.model.cache_type import CacheType

from .report import Section
from .setting import MIB, Setting
from .turns import spread

SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
QUICK_SEQUENCES = (1, 8, 64)
CONTEXT = 64
OUTPUT = 64
GREEDY = SamplingParams(temperature=0.0)
BASE_S, PER_SEQUENCE_S = 0.3e-3, 15e-6


@dataclass(frozen=True, slots=True)
class Share:
    """Of one step."""

    wall_s: float
    kernel_s: float

    @property
    def overhead_s(self) -> float:
        return self.wall_s - self.kernel_s


def k8(setting: Setting) -> Section:
    section = Section("K8", "a decode step's time outside kernels, milliseconds, by sequences")
    model = open_model(EngineOptions())
    counts = QUICK_SEQUENCES if setting.quick else SEQUENCES
    rounds = max(1, setting.effort.num_rounds // 2)
    driver = Driver(model)
    for count in counts:
        shares: dict[str, list[Share]] = {"one in flight": [], "two in flight": [], "engine": []}
        for _ in range(rounds):
            for in_flight, name in (
                (1, "one in flight"),
                (2, "two in flight"),
                (2, "two in flight"),
                (1, "one in flight"),
            ):
                shares[name].append(driver.decode(count, in_flight))
        section.detail[str(count)] = shares_of = {}
        for name in ("one in flight", "two in flight"):
            shares_of[name] = _middle(shares[name])
    driver.close()
    with running(EngineOptions(), model) as engine:
        for count, found in asyncio.run(engine_shares(engine, counts, 2 * rounds)).items():
            detail = section.detail[str(count)]
            assert isinstance(detail, dict)
            detail["engine"] = _middle(found)
            _add(section, count, detail)
    return section


def _middle(shares: Sequence[Share]) -> dict[str, float]:
    return {
        "wall_s": spread(one.wall_s for one in shares).seconds,
        "kernel_s": spread(one.kernel_s for one in shares).seconds,
        "overhead_s": spread(one.overhead_s for one in shares).seconds,
    }


def _add(section: Section, count: int, detail: Mapping[str, Mapping[str, float]]) -> None:
    engine = detail["engine"]
    note = f"of {engine['wall_s'] * 1e3:.2f} ms; executor alone, " + ", ".join(
        f"{name} {detail[name]['overhead_s'] * 1e3:.2f}" for name in ("one in flight", "two in flight")
    )
    most = (BASE_S + count * PER_SEQUENCE_S) * 1e3
    section.add(f"{count} sequences, engine", engine["overhead_s"] * 1e3, at_most=most, unit="ms", note=note)


@dataclass(slots=True, eq=False)
class Driver:
    """An executor that is given decode steps by hand."""

    model: LoadedModel
    executor: NativeExecutor = field(init=False)
    wake: Wake = field(init=False)
    tokens_per_block: int = field(init=False)
    num_workers: int = field(init=False)
    next_step: int = 0
    next_seq: int = 0

    def __post_init__(self) -> None:
        layout = plan_layout(self.model.program, memory_bytes=512 * MIB, cache_type=CacheType.F16)
        self.tokens_per_block = layout.groups[0].tokens_per_block
        cores = tuple(usable_processors())
        self.num_workers = len(cores)
        self.executor = NativeExecutor(NativeConfig(cores))
        self.executor.load({"step": self.model.program}, self.model.weights, layout)
        self.wake = Wake()
        self.executor.subscribe(self.wake)

    def close(self) -> None:
        self.executor.close()

    def decode(self, count: int, in_flight: int, num_steps: int = 24) -> Share:
        """Steps of one row of each of `count` sequences behind CONTEXT tokens and more."""
        seqs = [SeqId(self.next_seq + place) for place in range(count)]
        self.next_seq += count
        self._prefill(seqs)
        plans = [
            self._plan([Chunk(seq, CONTEXT + at, 1, FROM_DEVICE, outputs=_SAMPLED) for seq in seqs])
            for at in range(num_steps)
        ]
        # Two steps to warm up.
        self._run(plans[:2], in_flight)
        before, began = self.executor.counters(), time.perf_counter()
        self._run(plans[2:], in_flight)
        wall = time.perf_counter() - began
        kernels = self.executor.counters()["kernel_s"] - before["kernel_s"]
        self._run([self._plan([], tuple(Leave(seq) for seq in seqs))], 1)
        steps = len(plans) - 2
        return Share(wall / steps, kernels / self.num_workers / steps)

    def _prefill(self, seqs: Sequence[SeqId]) -> None:
        blocks = -(-(CONTEXT + 32) // self.tokens_per_block)
        most = self.executor.info.max_step_tokens // CONTEXT
        for first in range(0, len(seqs), most):
            group = seqs[first : first + most]
            joins = tuple(Join(seq, first + row, GREEDY, 0, 0, CONTEXT) for row, seq in enumerate(group))
            grants = tuple(
                BlockGrant(seq, GroupId(0), 0, tuple(BlockId((first + row) * blocks + i) for i in range(blocks)))
                for row, seq in enumerate(group)
            )
            tokens = [tuple((int(seq) * 31 + at * 7) % 10_000 + 100 for at in range(CONTEXT)) for seq in group]
            last = (Outputs(CONTEXT - 1, 1, OutputKind.SAMPLE),)
            chunks = [Chunk(seq, 0, CONTEXT, ids, outputs=last) for seq, ids in zip(group, tokens, strict=True)]
            self._run([self._plan(chunks, joins, grants)], 1)

    def _plan(
        self, chunks: Sequence[Chunk], roster: tuple[Join | Leave, ...] = (), grants: tuple[BlockGrant, ...] = ()
    ) -> StepPlan:
        self.next_step += 1
        return StepPlan(StepId(self.next_step), LaneId(0), roster, grants, (), tuple(chunks))

    def _run(self, plans: Sequence[StepPlan], in_flight: int) -> None:
        submitted = collected = 0
        while collected < len(plans):
            while submitted < len(plans) and submitted - collected < in_flight:
                self.executor.submit(plans[submitted])
                submitted += 1
            while not self.executor.ready():
                self.wake.wait(1.0)
                self.wake.clear()
            collected += len(self.executor.collect())


_SAMPLED = (Outputs(0, 1, OutputKind.SAMPLE),)


async def engine_shares(engine: LocalEngine, counts: Sequence[int], times: int) -> dict[int, list[Share]]:
    return {count: [await engine_share(engine, count, number) for number in range(times)] for count in counts}


async def engine_share(engine: LocalEngine, count: int, number: int) -> Share:
    """Of the steps in which all of `count` requests are past their first tokens and none is at its last."""
    rng = random.Random(number)
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    counters = engine.thread._executor.counters  # only a measurement looks inside
    num_tokens = [0] * count
    marks: list[tuple[float, dict[str, float]]] = []

    async def answer(place: int) -> None:
        prompt = tuple(rng.randrange(1000, 20_000) for _ in range(CONTEXT))
        request = Request(RequestId(f"k8-{count}-{number}-{place}"), prompt, sampling, cache_prefix=False)
        async for delta in engine.client.submit(request):
            num_tokens[place] += len(delta.tokens)
            begins = not marks and min(num_tokens) >= 4
            ends = len(marks) == 1 and max(num_tokens) >= OUTPUT - 3
            if begins or ends:
                marks.append((time.perf_counter(), counters()))

    await asyncio.gather(*(answer(place) for place in range(count)))
    if len(marks) < 2:
        raise ValueError(f"{count} requests of {OUTPUT} tokens never ran together")
    (began, before), (ended, after) = marks
    steps = max(1.0, after["steps"] - before["steps"])
    kernels = (after["kernel_s"] - before["kernel_s"]) / len(usable_processors())
    return Share((ended - began) / steps, kernels / steps)
