"""The simulator of this machine beside the machine: the same workloads through the same engine, in earnest and priced.

Calibrates first, or takes a file that `plait calibrate` wrote (--hardware). Each workload runs in process with the
native executor (real arrivals, real tokens, no HTTP), then through the simulator with equal limits, prompts and
arrivals. Prints both, the error of each figure, and of the speed-ups between variants of a workload; the last line is
one JSON object. Real runs are repeated and their medians compared; a quiet machine is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from plait.assembly import assemble
from plait.build import LoadedModel, choose_executor, load_model, start_engine
from plait.cli.calibrate import calibrate
from plait.cli.calibrate_report import lines
from plait.cli.engine_gaps import EngineStep, StepRecorder
from plait.cli.model_formats import formats_of
from plait.cli.tune import QUIET_SHARE, others_share
from plait.config.engine_options import EngineOptions
from plait.config.machine import processor_seconds
from plait.core.clock import Clock
from plait.core.events import Arrived, Event
from plait.core.executor import ExecutorInfo
from plait.core.ids import RequestId, SeqId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.cost.calibrated import CalibratedModel, cost_model
from plait.cost.hardware import HardwareSpec, find_hardware
from plait.cost.model import CostModel
from plait.cost.roofline import RooflineModel
from plait.cost.solo import phases
from plait.engine.client import AsyncClient
from plait.engine.engine import Engine, EngineConfig, Ports
from plait.exec.roster import slots_of
from plait.exec.simulated import SimulatedExecutor
from plait.model.cache_layout import CacheLayout, plan_layout
from plait.sim.arrivals import Arrival
from plait.sim.driver import simulate
from plait.sim.report import Report, ReportBuilder

Prices = RooflineModel | CalibratedModel

STEP_LIMIT_S = 86400.0
MEMORY_BYTES = 256 << 20
WARM_PROMPT = 512
FIGURES = ("throughput", "ttft p50", "ttft p90", "itl p50", "itl p90", "itl p99")


@dataclass(frozen=True, slots=True)
class Ask:
    at_s: float
    prompt: tuple[int, ...]
    num_output: int


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    asks: tuple[Ask, ...]
    max_num_seqs: int | None = None
    """None: as usual."""
    prefix_caching: bool = True
    against: str = ""
    """The workload of which this one is a variant: the speed-up between them is compared too."""


def workloads(vocab_size: int, seed: int) -> list[Workload]:
    rng = random.Random(seed)

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    def lognormal(mean: float, sigma: float, most: int) -> int:
        return max(8, min(most, round(rng.lognormvariate(0.0, sigma) * mean)))

    one = tuple(Ask(place * 3.0, words(256), 128) for place in range(3))
    crowd = tuple(Ask(0.0, words(128), 96) for _ in range(16))
    at_s, mixed = 0.0, []
    for _ in range(32):
        at_s += rng.expovariate(2.5)
        mixed.append(Ask(at_s, words(lognormal(250, 0.8, 1500)), lognormal(60, 0.6, 200)))
    prefix = words(768)
    shared = tuple(Ask(0.25 * place, prefix + words(48), 48) for place in range(16))
    return [
        Workload("one stream", one),
        Workload("16 at once", crowd),
        Workload("16 at once, 4 rows", crowd, max_num_seqs=4, against="16 at once"),
        Workload("Poisson, mixed lengths", tuple(mixed)),
        Workload("shared prefix", shared),
        Workload("shared prefix, no cache", shared, prefix_caching=False, against="shared prefix"),
    ]


def requests_of(asks: Sequence[Ask], label: str) -> list[Arrival]:
    return [
        Arrival(
            ask.at_s,
            Request(
                RequestId(f"{label}-{place}"),
                ask.prompt,
                SamplingParams(seed=place, max_tokens=ask.num_output, ignore_eos=True),
            ),
        )
        for place, ask in enumerate(asks)
    ]


@dataclass(frozen=True, slots=True)
class RealRun:
    report: Report
    arrived_s: tuple[float, ...]
    """When each request came in, from the first; the simulated ones come then, too."""
    steps: tuple[EngineStep, ...]
    info: ExecutorInfo


class Listener:
    """An event sink that makes a report and keeps arrivals and steps."""

    def __init__(self) -> None:
        self.report = ReportBuilder()
        self.steps = StepRecorder()
        self.arrived: dict[RequestId, float] = {}

    def __call__(self, event: Event) -> None:
        self.report(event)
        self.steps(event)
        if isinstance(event, Arrived):
            self.arrived[event.request] = event.at_s


class Switch:
    """An event sink whose listener can be changed between runs."""

    def __init__(self) -> None:
        self.listener = Listener()

    def __call__(self, event: Event) -> None:
        self.listener(event)


def run_real(model: LoadedModel, options: EngineOptions, arrivals: Sequence[Arrival]) -> RealRun:
    """Through a fresh engine, so that no prefix is known from before. Requests of its own fill its memory once: a page
    that was never written costs a prompt a tenth more, and a server has written all of them soon.
    """
    sink = Switch()
    engine = start_engine(options, model, sink, lambda words: None)
    try:
        with asyncio.Runner() as runner:
            runner.run(_send(engine.client, requests_of(filling(engine.sizes.capacity_tokens, model), "warm")))
            sink.listener = Listener()
            runner.run(_send(engine.client, arrivals))
        heard = sink.listener
        first_s = min(heard.arrived.values())
        arrived = tuple(heard.arrived[one.request.id] - first_s for one in arrivals)
        return RealRun(heard.report.report(), arrived, tuple(heard.steps.take()), engine.executor)
    finally:
        engine.close()


def filling(num_tokens: int, model: LoadedModel) -> list[Ask]:
    """Prompts of so many tokens and more, no two alike in a block."""
    vocab_size = model.program.vocab_size
    pieces = range(num_tokens // WARM_PROMPT + 2)
    return [Ask(0.0, tuple((piece * 7919 + place) % vocab_size for place in range(WARM_PROMPT)), 8) for piece in pieces]


async def _send(client: AsyncClient, arrivals: Sequence[Arrival]) -> None:
    began_s = time.monotonic()

    async def one(arrival: Arrival) -> None:
        await asyncio.sleep(max(0.0, arrival.at_s - (time.monotonic() - began_s)))
        async for delta in client.submit(arrival.request):
            if delta.error is not None:
                raise SystemExit(f"{arrival.request.id}: {delta.error}")

    await asyncio.gather(*(one(arrival) for arrival in arrivals))


def run_simulated(
    model: LoadedModel, options: EngineOptions, info: ExecutorInfo, cost: CostModel, arrivals: Sequence[Arrival]
) -> Report:
    layout = layout_of(model, options)

    def any_token(seq: SeqId, position: int) -> int:
        return (int(seq) * 31 + position) % model.program.vocab_size

    def make_engine(clock: Clock, ports: Ports) -> Engine:
        simulated = replace(info, name="simulated", bit_exact=False)
        executor = SimulatedExecutor(simulated, slots_of(layout), clock, cost, any_token)
        limits = EngineConfig(model.program.vocab_size, model.config.max_positions, step_limit_s=STEP_LIMIT_S)
        enabled = options.enable_prefix_caching
        return assemble(limits, layout, executor, clock, ports, enable_prefix=enabled).engine

    return simulate(arrivals, make_engine)


def layout_of(model: LoadedModel, options: EngineOptions) -> CacheLayout:
    assert options.kv_cache_memory is not None
    return plan_layout(
        model.program,
        memory_bytes=options.kv_cache_memory,
        tokens_per_block=options.block_size,
        cache_type=choose_executor(options, model.program, None).cache_type,
    )


def figures(report: Report) -> dict[str, float]:
    ttft, itl = report.ttft_s, report.itl_s
    assert ttft is not None
    assert itl is not None
    return {
        "throughput": report.output_tokens_per_s,
        "ttft p50": ttft.p50 * 1e3,
        "ttft p90": ttft.p90 * 1e3,
        "itl p50": itl.p50 * 1e3,
        "itl p90": itl.p90 * 1e3,
        "itl p99": itl.p99 * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--hardware", help="a file that plait calibrate wrote; default: calibrate first (two minutes)")
    parser.add_argument("--repeats", type=int, default=3, help="real runs of each workload")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two workloads once, a short calibration: does it work?")
    given = parser.parse_args()
    repeats = 1 if given.quick else given.repeats
    options = EngineOptions(model=given.model, kv_cache_memory=MEMORY_BYTES)
    model = load_model(options, lambda done, total: None, datetime.now)
    spec = hardware_of(given.hardware, model, options, quick=given.quick)
    cost = cost_model(
        model.program, formats_of(model, options, choose_executor(options, model.program, None).cache_type), spec
    )
    found: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    chosen = [one for one in workloads(model.program.vocab_size, given.seed) if given.only in one.name]
    chosen = [one for one in chosen if one.name.startswith("16 at once")] if given.quick else chosen
    began_s, before = time.monotonic(), processor_seconds()
    print(f"{'workload':<26}{'':<11}" + "".join(f"{name:>12}" for name in FIGURES))
    for workload in chosen:
        found[workload.name] = beside(model, options, cost, workload, repeats)
        show(workload.name, *found[workload.name])
    speed_ups = show_speed_ups(chosen, found)
    rows = {name: {"real": real, "simulated": simulated} for name, (real, simulated) in found.items()}
    others = others_share(before, processor_seconds(), time.monotonic() - began_s)
    if others > QUIET_SHARE:
        print(f"NOT QUIET: other programs used {others:.0%} of this machine, so this compares nothing")
    calibrated_on = None if spec.calibration is None else spec.calibration.calibrated_on
    print(json.dumps({"calibrated_on": calibrated_on, "workloads": rows, "speed_ups": speed_ups, "others": others}))


def hardware_of(name: str | None, model: LoadedModel, options: EngineOptions, *, quick: bool) -> HardwareSpec:
    """The file's, or this machine's as it is now, with the report of its calibration."""
    if name:
        return find_hardware(name)
    outcome = calibrate(model, options, quick=quick, tell=print)
    print("\n".join(lines(outcome)))
    return outcome.spec


def beside(
    model: LoadedModel, options: EngineOptions, cost: Prices, workload: Workload, repeats: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Figures in earnest and simulated, medians over repeats; each is simulated with its own arrivals."""
    options = replace(
        options,
        max_num_seqs=workload.max_num_seqs or options.max_num_seqs,
        enable_prefix_caching=workload.prefix_caching,
    )
    planned = requests_of(workload.asks, "ask")
    real, simulated = [], []
    steps: list[EngineStep] = []
    for _ in range(repeats):
        run = run_real(model, options, planned)
        real.append(figures(run.report))
        pairs = zip(run.arrived_s, planned, strict=True)
        came = sorted((Arrival(at_s, one.request) for at_s, one in pairs), key=lambda one: one.at_s)
        simulated.append(figures(run_simulated(model, options, run.info, cost, came)))
        steps += run.steps
    show_steps(steps, cost, run.info.share_units)
    return medians(real), medians(simulated)


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in FIGURES}


def show_steps(steps: Sequence[EngineStep], cost: Prices, units: int) -> None:
    """What steps took in the engine by what they were priced at, without the engine's overhead, by kind."""
    by_kind: dict[str, list[float]] = {}
    for step in steps:
        prefill, decode = phases(step.shape)
        kind = "both" if prefill.chunks and decode.chunks else "prompts" if prefill.chunks else "decode"
        price_s = cost.price(step.shape, units).expected_s - cost.overhead_s(step.shape)
        by_kind.setdefault(kind, []).append(step.device_s / price_s)
    told = (f"{kind} {len(ratios)} x {statistics.median(ratios):.3f}" for kind, ratios in sorted(by_kind.items()))
    print(f"  steps in the engine, measured by priced, medians: {', '.join(told)}")


def show(name: str, real: dict[str, float], simulated: dict[str, float]) -> None:
    print(f"{name:<26}{'real':<11}" + "".join(f"{real[one]:>12.2f}" for one in FIGURES))
    print(f"{'':<26}{'simulated':<11}" + "".join(f"{simulated[one]:>12.2f}" for one in FIGURES))
    off = (simulated[one] / real[one] - 1 for one in FIGURES)
    print(f"{'':<26}{'error':<11}" + "".join(f"{one:>+12.1%}" for one in off))


def show_speed_ups(
    chosen: Sequence[Workload], found: dict[str, tuple[dict[str, float], dict[str, float]]]
) -> dict[str, dict[str, float]]:
    """By throughput: of a workload over its variant."""
    told = {}
    for variant in chosen:
        if variant.against in found:
            (real, simulated), (real_base, simulated_base) = found[variant.name], found[variant.against]
            pair = {
                "real": real_base["throughput"] / real["throughput"],
                "simulated": simulated_base["throughput"] / simulated["throughput"],
            }
            told[f"{variant.against} over {variant.name}"] = pair
            points = 100 * (pair["simulated"] - pair["real"])
            print(
                f"{variant.against} over {variant.name}: {pair['real']:.3f} times as fast, simulated "
                f"{pair['simulated']:.3f} ({points:+.1f} points)"
            )
    return told


if __name__ == "__main__":
    main()
