"""Limits: `plait bench limits`, what this machine can do at most, which every later figure is a fraction of.

Owns the choice of samples, the table and the JSON object. The loops are native (`csrc/limits`); the spread of a serving
run is measured through the engine, as everything that is compared later is.
Invariant: a rate is the best of its samples, because others on the machine can only lower it; the median beside it
tells how much they did.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Protocol

from plait.build import LoadedModel, LocalEngine, load_model, start_engine
from plait.cli.streams import say, show, show_json
from plait.cli.terminal import MIB, download_progress
from plait.config.bench_options import LimitsOptions
from plait.config.engine_options import EngineOptions
from plait.config.machine import available_memory_bytes, num_cores
from plait.config.option import OptionSources
from plait.core.errors import PlaitError, RequestError
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.exec.native import presence
from plait.metrics.totals import Totals

WORKER_NICENESS = 5
"""How much less important than Python's threads the workers of the runtime are."""

SEPARATE_CORES_RATIO = 1.8
"""Two threads on the two halves of one core reach hardly more than one."""

WAKE_GAP_S = 0.002


@dataclass(frozen=True, slots=True)
class Effort:
    """How many samples are taken, and how long they are."""

    num_samples: int
    compute_s: float
    read_s: float
    read_bytes: tuple[int, ...]
    """Beyond every cache, beyond most, and inside the last level of most."""
    num_wakes: int
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    num_pairs: int
    """Runs A and B, which are the same, in turn."""


_READ_BYTES = (1024 * MIB, 96 * MIB, 16 * MIB)
QUICK = Effort(3, 0.02, 0.1, _READ_BYTES, num_wakes=200, num_requests=4, prompt_tokens=16, output_tokens=4, num_pairs=2)
FULL = Effort(
    15, 0.05, 0.2, _READ_BYTES, num_wakes=2000, num_requests=16, prompt_tokens=64, output_tokens=32, num_pairs=5
)


class LimitsModule(Protocol):
    """The functions of `plait._native` that measure."""

    def limits_loops(self) -> tuple[tuple[str, str], ...]: ...
    def limits_compute(
        self, kind: str, target: str, num_threads: int, num_samples: int, sample_s: float
    ) -> list[float]: ...
    def limits_read(self, num_bytes: int, num_threads: int, num_samples: int, sample_s: float) -> list[float]: ...
    def limits_wake(self, num_wakes: int, num_workers: int, niceness: int, gap_s: float) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class ComputeRate:
    """Operations a second of all threads; a multiplication and an addition are two."""

    kind: str
    target: str
    num_threads: int
    best_per_s: float
    median_per_s: float


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Bytes a second of all threads, out of a memory of `num_bytes` that they share."""

    num_bytes: int
    num_threads: int
    best_per_s: float
    median_per_s: float


@dataclass(frozen=True, slots=True)
class WakeLatency:
    """From a native notice until a thread runs Python again, with `num_workers` threads busy."""

    num_workers: int
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class ServingSpread:
    """Seconds of one and the same batch of requests, run again and again: A, B, A, B."""

    model: str
    executor: str
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    seconds: tuple[float, ...]
    median_ratio: float
    """B by A of a pair. As far as these are from 1, a difference between two engines is none."""
    min_ratio: float
    max_ratio: float
    spread_fraction: float
    """Slowest less fastest run, by the median run."""
    profile: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What was measured. `serving` is None without a model, and `no_serving` says why."""

    num_cores: int
    compute: tuple[ComputeRate, ...]
    read: tuple[ReadRate, ...]
    wake: tuple[WakeLatency, ...]
    serving: ServingSpread | None
    no_serving: str

    @property
    def core_ratio(self) -> float | None:
        """What a second thread adds to the best rate of float32; None: there is one core."""
        rates = [rate for rate in self.compute if rate.kind == "f32"]
        one, two = (
            max((rate.best_per_s for rate in rates if rate.num_threads == threads), default=0.0) for threads in (1, 2)
        )
        return two / one if two else None

    @property
    def has_separate_cores(self) -> bool:
        return self.core_ratio is None or self.core_ratio >= SEPARATE_CORES_RATIO

    def json_object(self) -> dict[str, object]:
        return {**asdict(self), "core_ratio": self.core_ratio, "has_separate_cores": self.has_separate_cores}

    def lines(self) -> list[str]:
        """The table for people."""
        found = [f"{'limit':<34}{'threads':>8}{'best':>10}{'median':>10}"]
        found += [
            _row(f"{one.kind} multiply-add, {one.target}", one.num_threads, one.best_per_s, one.median_per_s, "GOP/s")
            for one in self.compute
        ]
        found += [
            _row(f"read, {one.num_bytes // MIB} MiB", one.num_threads, one.best_per_s, one.median_per_s, "GB/s")
            for one in self.read
        ]
        found.append("")
        if self.core_ratio is not None:
            kind = "separate cores" if self.has_separate_cores else "NOT separate cores, or disturbed by others"
            found.append(f"two threads compute {self.core_ratio:.2f} times as much as one: {kind}")
        found += [
            f"wake-up into Python, {f'{one.num_workers} busy workers' if one.num_workers else 'idle cores'}: "
            f"p50 {one.p50_s * 1e6:.0f}, p90 {one.p90_s * 1e6:.0f}, p99 {one.p99_s * 1e6:.0f}, "
            f"max {one.max_s * 1e6:.0f} us"
            for one in self.wake
        ]
        found.append(f"serving: not measured, {self.no_serving}" if self.serving is None else _line(self.serving))
        return found


def _row(name: str, num_threads: int, best_per_s: float, median_per_s: float, unit: str) -> str:
    return f"{name:<34}{num_threads:>8}{best_per_s / 1e9:>10.1f}{median_per_s / 1e9:>10.1f} {unit}"


def _line(spread: ServingSpread) -> str:
    return (
        f"serving A/A, {spread.num_requests} requests {spread.prompt_tokens}/{spread.output_tokens} on "
        f"{spread.executor}: {len(spread.seconds)} runs of {statistics.median(spread.seconds):.2f} s, B/A median "
        f"{spread.median_ratio:.3f} ({spread.min_ratio:.3f} to {spread.max_ratio:.3f}), "
        f"spread {spread.spread_fraction:.1%}"
    )


def run_limits(sources: OptionSources) -> int:
    options, engine_options = sources.read(LimitsOptions), sources.read(EngineOptions)
    native = native_limits()
    limits = measure_limits(native, engine_options, QUICK if options.quick else FULL, quiet=options.quiet)
    if not options.json:
        for line in limits.lines():
            show(line)
    show_json(limits.json_object())
    return 0


def native_limits() -> LimitsModule:
    """The loops; `PlaitError` where Plait was installed without them."""
    if (reason := presence.missing()) is not None:
        raise PlaitError(
            f"plait bench needs the native module, which cannot be imported ({reason}); install Plait where a C++ "
            "compiler is"
        )
    from plait import _native

    return _native


def measure_limits(native: LimitsModule, engine_options: EngineOptions, effort: Effort, *, quiet: bool) -> Limits:
    """Everything, one after the other: two measurements at once would disturb each other."""

    def tell(what: str) -> None:
        if not quiet:
            say(f"measuring {what}")

    # First, because a model that is not there should fail at once.
    model = _find_model(engine_options, quiet=quiet)
    cores = num_cores()
    tell("multiply rates")
    compute = tuple(
        ComputeRate(kind, target, threads, max(rates), statistics.median(rates))
        for kind, target in native.limits_loops()
        for threads in thread_counts(cores)
        if (rates := native.limits_compute(kind, target, threads, effort.num_samples, effort.compute_s))
    )
    tell("read bandwidth")
    read = tuple(
        ReadRate(size, threads, max(rates), statistics.median(rates))
        for size in effort.read_bytes
        if size <= available_memory_bytes() // 2
        for threads in thread_counts(cores)
        if (rates := native.limits_read(size, threads, effort.num_samples, effort.read_s))
    )
    tell("wake-ups")
    wake = tuple(
        wake_latency(workers, native.limits_wake(effort.num_wakes, workers, WORKER_NICENESS, WAKE_GAP_S))
        for workers in (0, cores)
    )
    if isinstance(model, str):
        return Limits(cores, compute, read, wake, None, model)
    tell("the spread of a serving run")
    return Limits(cores, compute, read, wake, _measure_serving(engine_options, model, effort), "")


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4 and so on, and all."""
    doubling = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [*doubling, cores]


def wake_latency(num_workers: int, seconds: Sequence[float]) -> WakeLatency:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return WakeLatency(num_workers, cuts[49], cuts[89], cuts[98], max(seconds))


def _find_model(options: EngineOptions, *, quiet: bool) -> LoadedModel | str:
    """The model, or why there is none: the default one may be out of reach, but one that was named must be there."""
    try:
        with download_progress(options.model, quiet=quiet) as progress:
            return load_model(options, progress, datetime.now)
    except PlaitError as error:
        if options.model != EngineOptions().model:
            raise
        return str(error)


def _measure_serving(options: EngineOptions, model: LoadedModel, effort: Effort) -> ServingSpread:
    engine = start_engine(options, model, Totals(), say)
    try:
        seconds = asyncio.run(_serve_in_turn(engine, effort))
        figures = engine.profile_figures()
    finally:
        engine.close()
    spread = serving_spread(model.name, engine.executor.name, effort, seconds)
    return spread if figures is None else replace(spread, profile=figures.json_object())


def serving_spread(model: str, executor: str, effort: Effort, seconds: Sequence[float]) -> ServingSpread:
    """`seconds` of runs A, B, A, B and so on."""
    ratios = [b / a for a, b in zip(seconds[::2], seconds[1::2], strict=True)]
    return ServingSpread(
        model=model,
        executor=executor,
        num_requests=effort.num_requests,
        prompt_tokens=effort.prompt_tokens,
        output_tokens=effort.output_tokens,
        seconds=tuple(seconds),
        median_ratio=statistics.median(ratios),
        min_ratio=min(ratios),
        max_ratio=max(ratios),
        spread_fraction=(max(seconds) - min(seconds)) / statistics.median(seconds),
    )


async def _serve_in_turn(engine: LocalEngine, effort: Effort) -> list[float]:
    """Seconds of each run; one before them warms up."""
    return [await _serve(engine, effort, run) for run in range(2 * effort.num_pairs + 1)][1:]


async def _serve(engine: LocalEngine, effort: Effort, run: int) -> float:
    """Seconds of one run: the same prompts in every run, and none reuses what another left in the cache."""
    rng = random.Random(0)
    sampling = SamplingParams(temperature=0.0, max_tokens=effort.output_tokens, ignore_eos=True)
    vocab_size = engine.model.program.vocab_size
    requests = [
        Request(
            RequestId(f"run-{run}-{place}"),
            tuple(rng.randrange(vocab_size) for _ in range(effort.prompt_tokens)),
            sampling,
            cache_prefix=False,
        )
        for place in range(effort.num_requests)
    ]
    began = time.perf_counter()
    await asyncio.gather(*(_answer(engine, request) for request in requests))
    return time.perf_counter() - began


async def _answer(engine: LocalEngine, request: Request) -> None:
    async for delta in engine.client.submit(request):
        if delta.error is not None:
            raise RequestError(f"{request.id}: {delta.error}")
