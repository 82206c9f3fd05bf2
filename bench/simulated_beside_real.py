"""The simulator of this machine beside the machine: the same workloads through the same engine, in earnest and priced.

In rounds: each runs every workload in process with the native executor (real arrivals, real tokens, no HTTP), and in
front of each measures a part of the steps that `plait calibrate` measures, of those that have the whole device. Prices
are fitted to the steps of all rounds; then each real run is simulated with equal limits, prompts and arrivals, on a
machine that departs from these prices as it did right before and right after that run (`--spells all`: as it did at any
time). So a machine whose speed drifts drifts for both sides alike.
Prints the error of each figure beside how far real runs lie apart, speed-ups between variants of a workload, and by
kinds of steps what they took by what they were priced at. The last line is one JSON object. The machine must be quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import mul
from pathlib import Path

from plait.assembly import assemble
from plait.build import LoadedModel, choose_executor, load_model, start_engine
from plait.cli.calibrate import Measured, fit_outcome, measure
from plait.cli.calibrate_report import kind_of, lines
from plait.cli.calibrate_states import part_on_whole_device
from plait.cli.engine_gaps import EngineStep, StepRecorder
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
from plait.cost.estimators import device_s
from plait.cost.fit import fit_scatter
from plait.cost.hardware import HardwareSpec, find_hardware
from plait.cost.roofline import RooflineModel
from plait.cost.scatter import Replay, Scatter
from plait.cost.solo import phases
from plait.engine.client import AsyncClient
from plait.engine.engine import Engine, EngineConfig, Ports
from plait.exec.roster import slots_of
from plait.exec.simulated import SimulatedExecutor
from plait.model.cache_layout import CacheLayout, plan_layout
from plait.model_formats import formats_of
from plait.sim.arrivals import Arrival
from plait.sim.driver import simulate
from plait.sim.report import Report, ReportBuilder

Prices = RooflineModel | CalibratedModel

STEP_LIMIT_S = 86400.0
MEMORY_BYTES = 256 << 20
WARM_PROMPT = 512
FIGURES = ("throughput", "ttft p50", "ttft p90", "itl p50", "itl p90", "itl p99")
BAR, SPEED_UP_BAR = 0.10, 3.0
"""The errors that are to be kept to; of speed-ups in points."""
SEEDS = 5
"""Simulations of each real run."""
LONG_IDLE_S = 0.5
GAPS_EVERY = 3
"""Workloads: how often the whole engine is measured."""
Figures = dict[str, float]


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

    # In pairs: one right behind the other, the next after a pause.
    one = tuple(Ask(place // 2 * 2.2 + place % 2 * 0.5, words(256), 128) for place in range(10))
    crowd = tuple(Ask(0.0, words(128), 96) for _ in range(48))
    at_s, mixed = 0.0, []
    for _ in range(48):
        at_s += rng.expovariate(2.5)
        mixed.append(Ask(at_s, words(lognormal(250, 0.8, 1500)), lognormal(60, 0.6, 200)))
    prefix = words(768)
    shared = tuple(Ask(0.25 * place, prefix + words(48), 48) for place in range(32))
    return [
        Workload("one stream", one),
        Workload("48 at once, 16 rows", crowd, max_num_seqs=16),
        Workload("48 at once, 4 rows", crowd, max_num_seqs=4, against="48 at once, 16 rows"),
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
    model: LoadedModel,
    options: EngineOptions,
    info: ExecutorInfo,
    cost: Prices,
    scatter: Scatter | None,
    arrivals: Sequence[Arrival],
    seed: int,
) -> Report:
    layout = layout_of(model, options)

    def any_token(seq: SeqId, position: int) -> int:
        return (int(seq) * 31 + position) % model.program.vocab_size

    def make_engine(clock: Clock, ports: Ports) -> Engine:
        simulated = replace(info, name="simulated", bit_exact=False)
        replay = None if scatter is None else Replay(scatter, seed)
        executor = SimulatedExecutor(simulated, slots_of(layout), clock, cost, any_token, replay=replay)
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


def figures(report: Report) -> Figures:
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
        "itl count": float(itl.count),
    }


@dataclass(slots=True)
class Pair:
    """Of one workload: figures of its real runs, and of the simulations of each."""

    real: list[Figures]
    simulated: list[Figures]

    @property
    def medians(self) -> tuple[Figures, Figures]:
        real, simulated = (
            {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            for runs in (self.real, self.simulated)
        )
        return real, simulated

    @property
    def spread(self) -> Figures:
        """How far real runs lie apart, by their median."""
        real, _ = self.medians
        return {
            name: (max(run[name] for run in self.real) - min(run[name] for run in self.real)) / value
            for name, value in real.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--hardware", help="a file that plait calibrate wrote; default: calibrate in every round")
    parser.add_argument("--rounds", type=int, default=3, help="of calibration and real runs")
    parser.add_argument("--steps-s", type=float, default=72.0, help="seconds of measuring steps in a round")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two workloads once, a short calibration: does it work?")
    parser.add_argument(
        "--spells",
        choices=("around", "all"),
        default="around",
        help="which of the machine's moments a run is simulated in",
    )
    parser.add_argument("--record", type=Path, help="keep what is measured in this file")
    parser.add_argument("--replay", type=Path, help="measure nothing: price and simulate again what was recorded")
    given = parser.parse_args()
    rounds, steps_s = (1, 0.0) if given.quick else (given.rounds, given.steps_s)
    only = "48 at once" if given.quick else given.only
    options = EngineOptions(model=given.model, kv_cache_memory=MEMORY_BYTES)
    model = load_model(options, lambda done, total: None, datetime.now)
    chosen = [one for one in workloads(model.program.vocab_size, given.seed) if only in one.name]
    began_s, before = time.monotonic(), processor_seconds()
    measured: list[Measured] = []
    runs: list[tuple[Workload, RealRun]] = []
    parts = len(chosen)
    if given.replay:
        parts, measured, runs = pickle.loads(given.replay.read_bytes())
        runs = [(one, run) for one, run in runs if only in one.name]
        rounds = 0
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}, {time.monotonic() - began_s:.0f} s")
        for place, one in enumerate(chosen):
            if not given.hardware:
                part = partial(part_on_whole_device, number=place + number, parts=len(chosen))
                repeats = 1 if place % GAPS_EVERY == 0 else 0
                measured.append(measure(model, options, steps_s / len(chosen), repeats, lambda words: None, part))
            runs.append((one, run_real(model, with_limits(options, one), requests_of(one.asks, "ask"))))
    others = 0.0 if given.replay else others_share(before, processor_seconds(), time.monotonic() - began_s)
    if given.record:
        given.record.write_bytes(pickle.dumps((parts, measured, runs)))
    spec = find_hardware(given.hardware) if given.hardware else fitted(model, options, measured)
    cost = cost_model(
        model.program, formats_of(model, options, choose_executor(options, model.program, None).cache_type), spec
    )
    show_drift(measured, parts, cost)
    scatters = scatters_of(measured if given.spells == "around" else (), len(runs), cost)
    show_moments([run for _, run in runs], scatters, cost)
    pairs = beside(model, options, cost, runs, scatters)
    show_steps([run for _, run in runs], len(chosen), cost)
    show_figures(pairs)
    speed_ups = show_speed_ups(chosen, pairs)
    if others > QUIET_SHARE:
        print(f"NOT QUIET: other programs used {others:.0%} of this machine, so this compares nothing")
    calibrated_on = None if spec.calibration is None else spec.calibration.calibrated_on
    rows = {name: {"real": pair.real, "simulated": pair.simulated} for name, pair in pairs.items()}
    print(json.dumps({"calibrated_on": calibrated_on, "workloads": rows, "speed_ups": speed_ups, "others": others}))


def with_limits(options: EngineOptions, workload: Workload) -> EngineOptions:
    return replace(
        options,
        max_num_seqs=workload.max_num_seqs or options.max_num_seqs,
        enable_prefix_caching=workload.prefix_caching,
    )


def fitted(model: LoadedModel, options: EngineOptions, measured: Sequence[Measured]) -> HardwareSpec:
    """The machine with prices of all rounds, and the report of that calibration."""
    outcome = fit_outcome(model, options, together(measured))
    print("\n".join(lines(outcome)))
    return outcome.spec


def together(measured: Sequence[Measured]) -> Measured:
    everything = measured[0]
    for more in measured[1:]:
        everything = everything.with_more(more)
    return everything


def show_drift(measured: Sequence[Measured], parts: int, cost: Prices) -> None:
    """How fast the machine was in each round, by its speed over all of them."""
    if not isinstance(cost, CalibratedModel):
        return
    for number in range(len(measured) // parts):
        one = together(measured[number * parts : (number + 1) * parts])
        ratios: dict[str, list[float]] = {}
        for sample in (*one.fitted, *one.held_out):
            if sample.share == one.units:
                ratios.setdefault(kind_of(sample), []).append(sample.seconds / device_s(cost, sample))
        told = ", ".join(f"{kind} x {statistics.median(found):.3f}" for kind, found in sorted(ratios.items()))
        print(f"  the machine in round {number + 1}, steps by their price: {told}")


def scatters_of(measured: Sequence[Measured], num_runs: int, cost: Prices) -> list[Scatter | None]:
    """Of each run: how steps departed from their prices in what was measured right before it and right after it; where
    not every run has its own part, in all that was measured.
    """
    whole = cost.calibration.scatter if isinstance(cost, CalibratedModel) else None
    if whole is None or not isinstance(cost, CalibratedModel) or len(measured) != num_runs:
        return [whole] * num_runs
    found: list[Scatter | None] = []
    for place in range(num_runs):
        samples = [sample for part in measured[place : place + 2] for sample in part.fitted]
        units = measured[place].units
        found.append(fit_scatter(samples, cost, units, whole.jitter_s, whole.late_s, whole.rested_s) or whole)
    return found


def beside(
    model: LoadedModel,
    options: EngineOptions,
    cost: Prices,
    runs: Sequence[tuple[Workload, RealRun]],
    scatters: Sequence[Scatter | None],
) -> dict[str, Pair]:
    """Each real run, and simulations of it: several, because it is drawn when the machine is slow. Workloads of a round
    are simulated on a machine that is slow in the same moments, as a comparison wants it.
    """
    found: dict[str, Pair] = {}
    for (workload, run), scatter in zip(runs, scatters, strict=True):
        planned = requests_of(workload.asks, "ask")
        arrivals = zip(run.arrived_s, planned, strict=True)
        came = sorted((Arrival(at_s, one.request) for at_s, one in arrivals), key=lambda one: one.at_s)
        pair = found.setdefault(workload.name, Pair([], []))
        limits, first = with_limits(options, workload), SEEDS * len(pair.real)
        pair.real.append(figures(run.report))
        for seed in range(first, first + SEEDS):
            pair.simulated.append(figures(run_simulated(model, limits, run.info, cost, scatter, came, seed)))
    return found


def show_moments(runs: Sequence[RealRun], scatters: Sequence[Scatter | None], cost: Prices) -> None:
    """Run by run: what steps took by their prices in the moments that it is simulated in, and what its own took on the
    device. Where both are alike, it was the machine; where not, the price or something between the moments.
    """
    for run, scatter in zip(runs, scatters, strict=True):
        if scatter is None:
            continue
        around = sum(map(mul, scatter.spell_s, scatter.spell_ratios)) / sum(scatter.spell_s)
        took_s = sum(step.device_s for step in run.steps)
        priced_s = sum(
            cost.price(step.shape, run.info.share_units).expected_s - cost.overhead_s(step.shape) for step in run.steps
        )
        print(f"  steps by their price: {around:.3f} around the run, {took_s / priced_s:.3f} in it")


def class_of(step: EngineStep) -> str:
    """What a step is like, as far as prices may depend on it."""
    prefill, decode = phases(step.shape)
    tokens, rows = prefill.num_tokens, len(decode.chunks)
    size = bucket(tokens, (16, 64, 128, 256)) + " tokens" if tokens else ""
    if rows and tokens:
        return f"both, {size}, {bucket(rows, (1, 4, 12))} rows"
    if tokens:
        idle = f", {'long' if step.idle_s > LONG_IDLE_S else 'just'} idle" if step.from_idle else ""
        behind = ", behind others" if any(chunk.start for chunk in prefill.chunks) else ""
        return f"prompts, {size}{behind}{idle}"
    context = sum(chunk.start for chunk in decode.chunks) / rows
    return f"decode, {bucket(rows, (1, 3, 7, 15))} rows, context {bucket(round(context), (256, 768))}"


def bucket(value: int, edges: Sequence[int]) -> str:
    below = 0
    for edge in edges:
        if value <= edge:
            return f"{below + 1:>3}..{edge}"
        below = edge
    return f"{below + 1:>3}.."


def show_steps(runs: Sequence[RealRun], runs_of_round: int, cost: Prices) -> None:
    """By kinds of steps: what they took in the engine by what they are priced at, on the device and with all that the
    engine adds, and the latter round by round.
    """
    by_class: dict[str, list[tuple[int, float, float, float]]] = {}
    for place, run in enumerate(runs):
        for step in run.steps:
            price_s, added_s = cost.price(step.shape, run.info.share_units).expected_s, cost.overhead_s(step.shape)
            ratio = (place // runs_of_round, price_s, step.device_s / (price_s - added_s), step.period_s / price_s)
            by_class.setdefault(class_of(step), []).append(ratio)
    print(f"{'steps, medians':<48}{'number':>7}{'price ms':>10}{'device':>8}{'period':>8}{'p90':>7}  by round")
    for name, found in sorted(by_class.items()):
        price_s, device, period = (statistics.median(one[place] for one in found) for place in (1, 2, 3))
        p90 = sorted(one[3] for one in found)[int(0.9 * (len(found) - 1))]
        of_rounds = [[one[3] for one in found if one[0] == number] for number in range(len(runs) // runs_of_round)]
        rounds = " ".join(f"{statistics.median(one):.3f}" if one else "-" for one in of_rounds)
        print(f"{name:<48}{len(found):>7}{price_s * 1e3:>10.2f}{device:>8.3f}{period:>8.3f}{p90:>7.2f}  {rounds}")


def show_figures(pairs: dict[str, Pair]) -> None:
    """`!`: the error is beyond the bar; `~`: beyond it, and real runs lie as far apart."""
    print(f"{'workload':<26}{'':<12}" + "".join(f"{name:>13}" for name in FIGURES))
    num_in = num_spread = num = 0
    for name, pair in pairs.items():
        real, simulated = pair.medians
        spread = pair.spread
        off = {one: simulated[one] / real[one] - 1 for one in FIGURES}
        marks = {one: " " if abs(off[one]) <= BAR else "~" if abs(off[one]) <= spread[one] else "!" for one in FIGURES}
        num, num_in = num + len(marks), num_in + sum(mark == " " for mark in marks.values())
        num_spread += sum(mark == "~" for mark in marks.values())
        gaps = f"  {real['itl count']:,.0f} gaps"
        rows = {f"real {number + 1}": run for number, run in enumerate(pair.real)}
        rows |= {"median": real, "simulated": simulated}
        for told, (row, of_row) in zip((name, gaps, *[""] * len(rows)), rows.items(), strict=False):
            print(f"{told:<26}{row:<12}" + "".join(f"{of_row[one]:>12.2f} " for one in FIGURES))
        print(f"{'':<26}{'error':<12}" + "".join(f"{off[one]:>+12.1%}{marks[one]}" for one in FIGURES))
        print(f"{'':<26}{'real spread':<12}" + "".join(f"{spread[one]:>12.1%} " for one in FIGURES))
    print(f"{num_in} of {num} figures within {BAR:.0%}; {num_spread} more off by no more than real runs are apart")


def show_speed_ups(chosen: Sequence[Workload], pairs: dict[str, Pair]) -> dict[str, dict[str, float]]:
    """By throughput: of a workload over its variant, run by run."""
    told = {}
    for variant in chosen:
        if variant.against not in pairs:
            continue
        pair, base = pairs[variant.name], pairs[variant.against]
        real = [of["throughput"] / by["throughput"] for of, by in zip(base.real, pair.real, strict=True)]
        simulated = [of["throughput"] / by["throughput"] for of, by in zip(base.simulated, pair.simulated, strict=True)]
        found = {"real": statistics.median(real), "simulated": statistics.median(simulated)}
        told[f"{variant.against} over {variant.name}"] = found
        points = 100 * (found["simulated"] - found["real"])
        print(
            f"{variant.against} over {variant.name}: {found['real']:.3f} times as fast ({min(real):.3f} to "
            f"{max(real):.3f}), simulated {found['simulated']:.3f} ({points:+.1f} points, at most {SPEED_UP_BAR:.0f})"
        )
    return told


if __name__ == "__main__":
    main()
