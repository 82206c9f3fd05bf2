"""Colocation: an offline job in what online conversations leave idle, under six policies (ours; no paper has it).

Owns the claims. BlendServe's model on its device; online requests have lengths of Azure's conversations and come at
random; the job is the paper's trace #1 with answers a fourth as long in a fourth of the memory, so that as many of
them run at once. Capacity is the rate at which online traffic alone still has its first tokens in time. Nothing here
runs the engine (`plait.reproduce.beside_online`), but order, idle ratio and what is kept for a burst are those that
serve.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plait.cost.density import Lengths
from plait.cost.interleaved import INTERFERENCE
from plait.reproduce.band import Between
from plait.reproduce.beside_online import Device, OfflineSide, Rules, Shared, SharedRun
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.blendserve_densities import (
    BURST,
    BURST_DENSITY,
    MMLU,
    MMLU_SHARING,
    VIDEO,
    VIDEO_DENSITY,
)
from plait.reproduce.figure import BLENDSERVE, Evidence, Figure, Reference, Sampled
from plait.reproduce.models import LLAMA_8B_ON_A100
from plait.reproduce.offline_jobs import LONGEST, DrawnJob, Mix, draw_job
from plait.reproduce.simulated import sample_trace
from plait.sched.blend.feeds import Feed, FixedFeed, JobOrder, Ordering, feed_over
from plait.sched.blend.job import OfflineJob
from plait.sim.arrivals import TraceRow

SAMPLE = "azure_conv_sample.csv"
DENSITY, SHARING, REQUESTS = 1.4, 0.35, 5000
SHORTER = 4
"""Long answers and memory are so much less than the paper's."""
MEMORY_BYTES = 60e9 / SHORTER
WEIGHT_BYTES = 2 * 8.03e9
STEP_TOKENS = 2048
GAP_S, TTFT_S = 0.05, 1.0
ALONE_S = 0.05 * TTFT_S
LONGEST_PROMPT = 4096
HALF = 0.5
LOADS = (0.0, 0.25, HALF, 0.75, 0.9)
SEEDS = range(1, 6)
ALONE_FOR_S = 200.0
POLICIES = ("fcfs harvest", "priority only", "longest first", "dfs", "blend constant", "blend idle-ratio")
BEST, DFS = POLICIES[-1], POLICIES[3]
NOTE = "Azure conversations beside trace #1 with answers and memory a fourth; steps of two loads, without an engine"


@dataclass(frozen=True, slots=True)
class Setting:
    job: DrawnJob
    device: Device
    lengths: Sequence[TraceRow]

    @property
    def tokens(self) -> int:
        return sum(self.job.prompts) + sum(self.job.outputs)

    def arrivals(self, rate: float, seed: int) -> Iterator[TraceRow]:
        dice, at_s = random.Random(seed), 0.0
        while rate:
            at_s += dice.expovariate(rate)
            one = dice.choice(self.lengths)
            yield TraceRow(at_s, min(LONGEST_PROMPT, one.num_prompt), one.num_output)

    def feed(self, policy: str, seed: int) -> Feed:
        job = self.job
        if policy == "longest first":
            return FixedFeed(sorted(range(len(job.prompts)), key=lambda place: -job.outputs[place]))
        order = JobOrder.BLEND if policy.startswith("blend") else JobOrder.DFS if policy == DFS else JobOrder.RANDOM
        offline = OfflineJob(prompt_tokens=job.prompts, most=array("q", [LONGEST]) * len(job.prompts))
        offline.known = dict(job.known)
        return feed_over(job.tree, offline, Ordering(order, job.lives, self.device.memory_bytes, seed))

    def beside(self, policy: str, rate: float, seed: int) -> SharedRun:
        job = self.job
        side = OfflineSide(self.feed(policy, seed), job.tree, job.prompts, job.outputs)
        rules = Rules(guarded=policy != "priority only", follows=policy == BEST)
        return Shared(self.device, self.arrivals(rate, seed), side, rules).run()

    def alone(self, rate: float, seed: int, until_s: float = ALONE_FOR_S) -> SharedRun:
        return Shared(self.device, self.arrivals(rate, seed), None, until_s=until_s).run()

    def speed(self, run: SharedRun) -> float:
        return self.tokens / run.seconds

    def capacity(self) -> float:
        """Online requests a second of which all but one in a hundred have their first token in time."""
        low, high = 1.0, 32.0
        while high - low > 0.25:
            middle = (low + high) / 2
            found = self.alone(middle, 1).ttft_s
            low, high = (middle, high) if found is not None and found.p99 <= TTFT_S else (low, middle)
        return low


def setting(requests: int = REQUESTS) -> Setting:
    model = LLAMA_8B_ON_A100
    burst = Lengths(*BURST, model.output_squared_of(*BURST, BURST_DENSITY))
    square = model.output_squared_of(*VIDEO, VIDEO_DENSITY)
    video = Lengths(VIDEO[0], VIDEO[1] / SHORTER, square / SHORTER**2)
    alike = Lengths(*MMLU, shared=round(MMLU_SHARING * MMLU[0]))
    job = draw_job(model, Mix(burst, video, alike, requests, DENSITY, SHARING))
    weights_s = WEIGHT_BYTES / model.bytes_per_s
    device = Device(
        job.lives, MEMORY_BYTES, weights_s, STEP_TOKENS, INTERFERENCE, GAP_S, ALONE_S, longest_prompt=LONGEST_PROMPT
    )
    return Setting(job, device, sample_trace(SAMPLE))


def curve(made: Setting, capacity: float) -> dict[tuple[str, float], float]:
    """Offline tokens a second of every policy at every load, one seed."""
    return {
        (policy, load): made.speed(made.beside(policy, load * capacity, 1)) for load in LOADS for policy in POLICIES
    }


def along(speeds: Mapping[tuple[str, float], float]) -> dict[str, float]:
    """The curve in ratios: over every other policy, and over nobody online."""
    found = {
        f"load {load:.0%}, over {policy}": speeds[BEST, load] / speeds[policy, load]
        for load in LOADS
        for policy in POLICIES[:-1]
    }
    return found | {
        f"load {load:.0%}, of nobody online": 100 * speeds[BEST, load] / speeds[BEST, 0.0] for load in LOADS[1:]
    }


def _p99(run: SharedRun) -> tuple[float, float]:
    assert run.ttft_s is not None
    assert run.gap_s is not None
    return run.ttft_s.p99, run.gap_s.p99


def at_half(made: Setting, capacity: float, seeds: Sequence[int]) -> Mapping[str, Sampled]:
    """Ratios at half of the capacity, by seed of the arrivals."""
    found: dict[str, list[float]] = {}
    for seed in seeds:
        runs = {one: made.beside(one, HALF * capacity, seed) for one in (DFS, "priority only", *POLICIES[-2:])}
        best, others = runs[BEST], {name: made.speed(run) for name, run in runs.items()}
        alone = _p99(made.alone(HALF * capacity, seed, best.seconds))
        for name, value in {
            "half load, over dfs": others[BEST] / others[DFS],
            "half load, over blend constant": others[BEST] / others["blend constant"],
            "half load, P99 of first tokens over online alone": _p99(best)[0] / alone[0],
            "half load, P99 of gaps over online alone": _p99(best)[1] / alone[1],
            "half load, P99 of first tokens, priority only": _p99(runs["priority only"])[0] / alone[0],
        }.items():
            found.setdefault(name, []).append(value)
    return {name: Sampled(tuple(values)) for name, values in found.items()}


def _work_out() -> Answers:
    made = setting()
    capacity = made.capacity()
    return {**at_half(made, capacity, SEEDS), **along(curve(made, capacity))}


def _figure(name: str, published: str, band: Between, unit: str = "x") -> Figure:
    return Figure(name, Reference(BLENDSERVE, "-", name), published, band, unit, Evidence.SIMULATED, note=NOTE)


CASE = Case(
    "colocation",
    "an offline job in what online conversations leave idle (no paper has it; claims of our own)",
    BLENDSERVE,
    (
        _figure("half load, over dfs", "1.15", Between(low=1.15)),
        _figure("half load, over blend constant", "no worse", Between(low=1.0)),
        _figure("half load, P99 of first tokens over online alone", "1.05", Between(high=1.05)),
        _figure("half load, P99 of gaps over online alone", "1.05", Between(high=1.05)),
        _figure("half load, P99 of first tokens, priority only", "above 1.05", Between(low=1.05)),
        *(
            _figure(f"load {load:.0%}, over {policy}", "no worse", Between(low=1.0))
            for load in LOADS
            for policy in POLICIES[:-1]
        ),
        # No less than its part of the device.
        *(
            _figure(
                f"load {load:.0%}, of nobody online", f"{100 * (1 - load):.0f}", Between(low=100 * (1 - load)), " %"
            )
            for load in LOADS[1:]
        ),
    ),
    _work_out,
)
