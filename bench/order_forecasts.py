"""How far forecasts of batch orders are off, and what `auto` loses by that: jobs drawn at random, in simulated time.

    .venv/bin/python bench/order_forecasts.py [--jobs 40] [--seed 1] [--processes 2]

Each job is run in every order by the engine in simulated time (scheduler and memory are those that serve) and foretold
by what `plait batch --order auto` asks. Counts alone: it says the same on every machine. Prints a line for each job:
what `auto` took beside the best fixed order, and seconds foretold over those taken. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from statistics import fmean

from plait.core.ids import RequestId
from plait.core.request import Request, ServiceClass
from plait.core.sampling import SamplingParams
from plait.cost.calibrated import cost_model
from plait.cost.hardware import HardwareSpec
from plait.model.config import ModelConfig
from plait.model.cost import Formats, Parallel
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL
from plait.sched.blend.choosing import CHOICES, chosen_of
from plait.sched.blend.feeds import JobOrder, Ordering, feed_over
from plait.sched.blend.forecast import Forecast, Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.prices import priced
from plait.sched.blend.tree import build_tree, packed
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.form import parse_form
from plait.sim.offline import OfflineLoad, lives_on
from plait.sim.replica import ReplicaSpec
from plait.sim.report import Report

VOCAB, IN_FLIGHT, AHEAD = 1000, 128, 4
TOKEN_BYTES = 2 * 2 * (16 + 16) * 2
ORDERS = (JobOrder.INPUT, *CHOICES)
FIXED = tuple(order for order in ORDERS if order is not JobOrder.BLEND)
AS_GOOD = 0.98


@dataclass(frozen=True, slots=True)
class Drawn:
    """A job and where it runs. `memory`: in requests of the longest kind."""

    seed: int
    subjects: int
    stem: int
    own: int
    questions: int
    middles: int
    longs: int
    tokens: int
    memory: float
    rows: int
    block: int
    step_tokens: int
    flops_per_s: float
    bytes_per_s: float
    overhead_s: float

    def requests(self) -> list[tuple[tuple[int, ...], int]]:
        dice = random.Random(self.seed)

        def text(length: int) -> tuple[int, ...]:
            return tuple(dice.randrange(VOCAB) for _ in range(length))

        stems = [text(self.stem) for _ in range(self.subjects)]
        found = [(dice.choice(stems) + text(self.own), 2) for _ in range(self.questions)]
        found += [(text(self.stem // 2), dice.randrange(4, 2 + self.tokens // 3)) for _ in range(self.middles)]
        found += [(text(12), round(self.tokens * dice.uniform(0.5, 1.5))) for _ in range(self.longs)]
        dice.shuffle(found)
        return found


def drawn(seed: int) -> Drawn:
    dice = random.Random(f"job {seed}")

    def even(low: float, high: float) -> float:
        """By its logarithm."""
        return low * (high / low) ** dice.random()

    return Drawn(
        seed=seed,
        subjects=round(even(3, 40)),
        stem=round(even(16, 200)),
        own=round(even(4, 40)),
        questions=round(even(70, 300)),
        middles=round(even(1, 40)),
        longs=round(even(2, 30)),
        tokens=round(even(30, 200)),
        memory=even(1.15, 60),
        rows=round(even(4, 32)),
        block=dice.choice((8, 16, 32)),
        step_tokens=dice.choice((64, 128, 256)),
        flops_per_s=even(5e8, 2e10),
        bytes_per_s=even(1e8, 1e9),
        overhead_s=even(5e-5, 1e-3),
    )


def model() -> ModelConfig:
    return ModelConfig(
        family="llama",
        num_layers=2,
        hidden=64,
        ffn_hidden=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=VOCAB,
        max_positions=4096,
        norm_eps=1e-5,
        rope=RopeSpec(10000.0, 16, 4096),
        activation=Activation.SILU,
        layer_visibility=(CAUSAL,) * 2,
        tied_embeddings=True,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Of one order: the engine in simulated time, and the forecast."""

    real: Report
    told: Forecast


def runs(one: Drawn) -> dict[JobOrder, Run]:
    requests = one.requests()
    longest = max(len(prompt) + output for prompt, output in requests)
    tokens = max(round(one.memory * longest), longest + 2 * one.block)
    hardware = HardwareSpec("drawn", one.flops_per_s, one.bytes_per_s, 10**9, 4, 2.0, one.overhead_s, 0.0)
    program, formats = build_program(model()), Formats(default_cache_bytes=2.0)
    spec = ReplicaSpec(
        program,
        formats,
        hardware,
        cache_bytes=tokens * TOKEN_BYTES,
        max_step_tokens=one.step_tokens,
        max_rows=one.rows,
        tokens_per_block=one.block,
    )
    return {order: _run(requests, spec, order) for order in ORDERS}


def _run(requests: Sequence[tuple[tuple[int, ...], int]], spec: ReplicaSpec, order: JobOrder) -> Run:
    lives = lives_on(spec.hardware, spec.program, spec.formats)
    ordering = Ordering(order, lives, spec.cache_bytes, ahead=AHEAD, holds_once=True)
    job = OfflineJob()
    for prompt, output in requests:
        job.known[job.add(packed(prompt), len(prompt), output)] = output
    tree = build_tree(job.prompts)
    machine = Machine(
        spec.cache_bytes,
        spec.max_step_tokens,
        rows=spec.max_rows,
        tells=False,
        step_overhead_s=spec.hardware.step_overhead_s,
        block_tokens=spec.tokens_per_block,
        in_flight=IN_FLIGHT,
    )
    cost = cost_model(spec.program, spec.formats, spec.hardware, Parallel(1))
    machine = priced(machine, cost, spec.hardware.share_units, lives)
    outputs = [output for _, output in requests]
    told = forecast(feed_over(tree, job, ordering), tree, job.prompt_tokens, outputs, lives, machine)
    asked = [
        Request(
            RequestId(str(place)),
            prompt,
            SamplingParams(max_tokens=output, ignore_eos=True),
            service_class=ServiceClass.BATCH,
        )
        for place, (prompt, output) in enumerate(requests)
    ]
    load = OfflineLoad(asked, ordering, job, IN_FLIGHT)
    return Run(simulate_cluster(load, ClusterSpec(spec, parse_form("1"))).whole, told)


@dataclass(frozen=True, slots=True)
class Judged:
    job: Drawn
    chosen: str
    best: str
    worth: float
    """Of the best fixed order's speed."""
    errors: dict[str, float]
    """Seconds foretold over those taken."""
    steps: dict[str, tuple[int, int]]
    hits: dict[str, tuple[float, float]]
    preempted: dict[str, tuple[int, int]]
    seconds: dict[str, tuple[float, float]]
    """Taken and foretold."""


def judged(seed: int) -> Judged:
    one = drawn(seed)
    found = runs(one)
    asked = sum(len(prompt) for prompt, _ in one.requests())
    chosen = chosen_of({order: run.told.seconds for order, run in found.items()})
    best = min(FIXED, key=lambda order: found[order].real.makespan_s)
    return Judged(
        one,
        chosen.value,
        best.value,
        found[best].real.makespan_s / found[chosen].real.makespan_s,
        {order.value: run.told.seconds / run.real.makespan_s for order, run in found.items()},
        {order.value: (run.real.num_steps, run.told.steps) for order, run in found.items()},
        {order.value: (run.real.prefix_hit_fraction, run.told.found_tokens / asked) for order, run in found.items()},
        {order.value: (run.real.num_preemptions, run.told.preempted) for order, run in found.items()},
        {order.value: (run.real.makespan_s, run.told.seconds) for order, run in found.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.jobs)
    with ProcessPoolExecutor(given.processes) as pool:
        found = list(pool.map(judged, seeds))
    for one in found:
        mark = "MISSED" if one.worth < AS_GOOD else "ok"
        print(f"{one.job.seed:>4} {mark:<7}{one.worth:6.3f}  {one.chosen:<8} best {one.best:<8} {_shown(one)}")
    worths = [one.worth for one in found]
    errors = [error for one in found for error in one.errors.values()]
    print(
        f"{sum(worth < AS_GOOD for worth in worths)} of {len(found)} below {AS_GOOD}, {fmean(worths):.3f} on average; "
        f"forecasts {min(errors):.2f} to {max(errors):.2f} of what was taken"
    )
    print(json.dumps([asdict(one) for one in found]))


def _shown(one: Judged) -> str:
    job = one.job
    where = f"memory {job.memory:.1f} longest, {job.rows} rows, blocks of {job.block}"
    return f"{where}; " + "  ".join(f"{order} {error:.2f}" for order, error in one.errors.items())


if __name__ == "__main__":
    main()
