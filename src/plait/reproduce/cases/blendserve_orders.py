"""BlendServe's orders (figures 7 to 10): its four traces run in one order after another, on the paper's machine.

Owns the claims. The traces are a quarter of the paper's in requests and in memory, so that as many videos follow each
other; steps are priced as max + gamma * min of two loads. `blend` bounds what a step computes by what traffic has come;
`parts` is the paper's split of memory alone.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from plait.cost.density import Lengths, step_s
from plait.cost.interleaved import INTERFERENCE
from plait.reproduce.band import Band, Between, Near
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.blendserve_densities import (
    BURST,
    BURST_DENSITY,
    DFS_INPUT,
    MIXES,
    MMLU,
    MMLU_SHARING,
    VIDEO,
    VIDEO_DENSITY,
)
from plait.reproduce.figure import BLENDSERVE, Evidence, Figure, Reference
from plait.reproduce.models import LLAMA_8B_ON_A100
from plait.reproduce.offline_jobs import DrawnJob, Mix, draw_job
from plait.sched.blend.feeds import JobOrder, Ordering
from plait.sched.blend.forecast import Forecast, Machine

REQUESTS, MEMORY_BYTES = 100_000, 15e9
STEP_TOKENS = 2048
GAMMAS = (0.0, 0.15, 0.3, 0.6)
SHARED_TRACES = ("#1", "#2")
SCALED = "100,000 requests on 15 GB for 400,000 on 60 GB; a step is max + 0.3 min of two loads, without an engine"
OURS = "a step computes no more than the traffic so far is worth; the paper splits memory alone (parts)"


def mix_of(density: float, sharing: float, requests: int) -> Mix:
    model = LLAMA_8B_ON_A100
    burst = Lengths(*BURST, model.output_squared_of(*BURST, BURST_DENSITY))
    video = Lengths(*VIDEO, model.output_squared_of(*VIDEO, VIDEO_DENSITY))
    return Mix(burst, video, Lengths(*MMLU, shared=round(MMLU_SHARING * MMLU[0])), requests, density, sharing)


def machine(memory_bytes: float, *, tells: bool = True) -> Machine:
    return Machine(memory_bytes, STEP_TOKENS, INTERFERENCE, tells=tells)


class Loads:
    """Of the steps of a run."""

    def __init__(self) -> None:
        self.compute, self.memory, self.counts = array("d"), array("d"), array("q")

    def __call__(self, compute_s: float, memory_s: float, count: int) -> None:
        self.compute.append(compute_s)
        self.memory.append(memory_s)
        self.counts.append(count)

    def seconds(self, interference: float) -> float:
        loads = zip(self.compute, self.memory, self.counts, strict=True)
        return sum(step_s(compute, memory, interference) * count for compute, memory, count in loads)

    def ratio(self) -> tuple[float, float]:
        """Mean and coefficient of variation of a step's computing over its traffic, in the middle half of the time."""
        total, seen = sum(self.counts), 0
        ratios = []
        for compute, memory, count in zip(self.compute, self.memory, self.counts, strict=True):
            seen += count
            if total / 4 <= seen <= 3 * total / 4 and memory > 0:
                ratios.append((compute / memory, count))
        weight = sum(count for _, count in ratios)
        mean = sum(ratio * count for ratio, count in ratios) / weight
        variance = sum((ratio - mean) ** 2 * count for ratio, count in ratios) / weight
        return mean, variance**0.5 / mean


def _runs(job: DrawnJob) -> tuple[dict[str, Forecast], dict[str, Loads]]:
    blend = Ordering(JobOrder.BLEND, job.lives, MEMORY_BYTES)
    here, loads = machine(MEMORY_BYTES), {"blend": Loads(), "dfs": Loads()}
    runs = {
        "blend": job.run(blend, here, watch=loads["blend"]),
        "parts": job.run(blend, machine(MEMORY_BYTES, tells=False)),
        "oracle": job.run(blend, here, knows_all=True),
        "no-split": job.run(replace(blend, lost_share=0.0), here),
        "no-merge": job.run(replace(blend, merges=False), here),
    }
    for order in (JobOrder.DFS, JobOrder.RANDOM, JobOrder.BFS, JobOrder.DENSITY):
        runs[order.value] = job.run(replace(blend, order=order), here, watch=loads.get(order.value))
    return runs, loads


def _work_out() -> Answers:
    found: dict[str, float] = {}
    gains, parts = [], []
    for name, (density, sharing, *_) in MIXES.items():
        job = draw_job(LLAMA_8B_ON_A100, mix_of(density, sharing, REQUESTS))
        runs, loads = _runs(job)
        found |= _answers(name, job, runs, loads)
        gains.append(runs["dfs"].seconds / runs["blend"].seconds)
        parts.append(runs["dfs"].seconds / runs["parts"].seconds)
    return found | {"mean over dfs": sum(gains) / len(gains), "mean over dfs, parts": sum(parts) / len(parts)}


def _answers(name: str, job: DrawnJob, runs: dict[str, Forecast], loads: dict[str, Loads]) -> dict[str, float]:
    blend, dfs, rand = runs["blend"].seconds, runs["dfs"].seconds, runs["random"].seconds
    best, shareable = job.optimum_s(INTERFERENCE), job.num_shareable
    mean, variation = loads["blend"].ratio()
    found = {
        f"{name}, over dfs": dfs / blend,
        f"{name}, over dfs, parts": dfs / runs["parts"].seconds,
        f"{name}, part of the optimum": 100 * best / blend,
        f"{name}, part of the optimum, dfs": 100 * best / dfs,
        f"{name}, part of the optimum, oracle": 100 * best / runs["oracle"].seconds,
        f"{name}, sharing kept": 100 * runs["blend"].found_tokens / shareable,
        f"{name}, over the best of dfs and random": min(dfs, rand) / blend,
        f"{name}, over no-split": runs["no-split"].seconds / blend,
        f"{name}, over no-merge": runs["no-merge"].seconds / blend,
        f"{name}, over bfs": runs["bfs"].seconds / blend,
        f"{name}, over density": runs["density"].seconds / blend,
        f"{name}, over oracle lengths": runs["oracle"].seconds / blend,
        f"{name}, random over dfs": dfs / rand,
        f"{name}, density of a step": mean / (job.compute_s / job.memory_s),
        f"{name}, its variation over that of dfs": variation / loads["dfs"].ratio()[1],
    }
    if name in SHARED_TRACES:
        found[f"{name}, sharing kept, random"] = 100 * runs["random"].found_tokens / shareable
        found[f"{name}, over random"] = rand / blend
    for gamma in GAMMAS:
        found[f"{name}, over dfs, gamma {gamma:g}"] = loads["dfs"].seconds(gamma) / loads["blend"].seconds(gamma)
    return found


def _figure(name: str, section: str, published: str, band: Band, unit: str = "x", note: str = SCALED) -> Figure:
    calibrated = (DFS_INPUT,) if name.endswith("optimum, dfs") else ()
    reference = DFS_INPUT if calibrated else Reference(BLENDSERVE, section, name)
    return Figure(name, reference, published, band, unit, Evidence.SIMULATED, calibrated_on=calibrated, note=note)


def _figures_of(name: str) -> tuple[Figure, ...]:
    is_shared = name in SHARED_TRACES
    no_worse = Between(low=0.99)
    found = [
        _figure(f"{name}, over dfs", "Fig. 7a", "1.21", Between(low=1.14), note=OURS),
        _figure(f"{name}, over dfs, parts", "Fig. 7a", "1.21", Near(0.1)),
        _figure(f"{name}, part of the optimum", "Fig. 7a", "86.55", Between(low=85.0), " %", OURS),
        _figure(f"{name}, part of the optimum, dfs", "1", "71.7", Near(0.1), " %"),
        _figure(f"{name}, part of the optimum, oracle", "Fig. 7a", "86.55", Between(low=85.0), " %", OURS),
        _figure(f"{name}, sharing kept", "Fig. 9", "97", Between(low=97.0), " %"),
        _figure(f"{name}, over the best of dfs and random", "Fig. 7a", "no worse", no_worse),
        _figure(f"{name}, over no-split", "A.2", "no worse", no_worse),
        _figure(f"{name}, over no-merge", "A.2", "no worse", Between(low=0.97)),
        _figure(f"{name}, over bfs", "5", "no worse", no_worse),
        _figure(f"{name}, over density", "5", "no worse", no_worse),
        _figure(f"{name}, over oracle lengths", "A.4", "comparable", Between(low=0.93)),
        _figure(
            f"{name}, random over dfs",
            "Fig. 7a",
            "below 1" if is_shared else "above 1",
            Between(high=1.0) if is_shared else Between(low=1.0),
        ),
        _figure(f"{name}, density of a step", "Fig. 10", "1", Near(0.1)),
        _figure(f"{name}, its variation over that of dfs", "Fig. 10", "flat", Between(high=0.5)),
        *(
            _figure(f"{name}, over dfs, gamma {gamma:g}", "Fig. 7a", "above 1", Between(low=1.0), note=OURS)
            for gamma in GAMMAS
        ),
    ]
    if is_shared:
        found.append(_figure(f"{name}, sharing kept, random", "Fig. 9", "30", Between(high=30.0), " %"))
        found.append(_figure(f"{name}, over random", "Fig. 7a", "1.36", Near(0.1), note=OURS))
    return tuple(found)


CASE = Case(
    "blendserve-orders",
    "four offline jobs in one order after another",
    BLENDSERVE,
    (
        *(figure for name in MIXES for figure in _figures_of(name)),
        _figure("mean over dfs", "Fig. 7a", "1.2084", Between(low=1.18), note=OURS),
        _figure("mean over dfs, parts", "Fig. 7a", "1.2084", Near(0.06)),
    ),
    _work_out,
)
