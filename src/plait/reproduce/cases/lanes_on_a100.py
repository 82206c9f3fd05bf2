"""Lanes on A100: devices, loads and targets that Bullet's and MuxWise's simulated cases have in common.

Owns their calibration and the words for it. Law of the devices: a roofline times a factor of the step's size, noise of
6.8 %, and an erratic slowdown of decode beside prompts; a step with prompts costs its launch besides.

Launch: MuxWise's two steps of Llama-70B (505 ms for 4,096 tokens, 100 ms for 256) lie on no roofline with one factor.
What the short one lacks is taken to be the launch of a step whose operations are started one by one, which the paper
puts at tens of milliseconds; layers that are launched as graphs, as lanes do, take 10 ms. Both go with the layers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from plait.core.request import Slo
from plait.cost.hardware import find_hardware
from plait.reproduce.cases.bullet_chunks import LOSSES, SUSTAINED, UTILISATION
from plait.reproduce.cases.estimator import NOISE_95, SLOWDOWN
from plait.reproduce.cases.muxwise_anchors import LONG, LONG_STEP, SHORT, SHORT_STEP, alpha_of_long, step_ms, step_of
from plait.reproduce.figure import MUXWISE, Reference, Sampled
from plait.reproduce.models import llama_8b, llama_70b
from plait.reproduce.simulated import sample_trace
from plait.reproduce.stages import Stage
from plait.sim.traces.request import TraceRequest

SEEDS = range(5)
LAYERS_70B, LAYERS_8B = 80, 32
GRAPH_LAUNCH = Reference(MUXWISE, "3.2", "a prefill of 70B in pieces of graphs takes 10 ms to launch")
GRAPH_LAUNCH_S = 0.010
LAW_8B = (SUSTAINED, UTILISATION, LOSSES, NOISE_95, SLOWDOWN)
LAW_70B = (LONG_STEP, NOISE_95, SLOWDOWN)
LAUNCHES = (LONG_STEP, SHORT_STEP, GRAPH_LAUNCH)
ALPHAS_8B = ((1024, 1.51), (2048, 1.40), (16384, 1.31))
"""1 / 0.66, 1 / 0.716 and 1 / 0.77: Bullet's utilisations of steps of so many tokens."""


def launch_s(layers: int) -> float:
    """Of a step with prompts whose operations are launched one by one."""
    return (0.100 - step_ms(step_of(SHORT)) / 1e3) * layers / LAYERS_70B


def with_launches(stage: Stage) -> Stage:
    layers = LAYERS_70B if stage.program is llama_70b() else LAYERS_8B
    return replace(stage, launch_s=launch_s(layers), layered_launch_s=GRAPH_LAUNCH_S * layers / LAYERS_70B)


@cache
def one_a100() -> Stage:
    """Llama-8B on one A100."""
    return Stage(llama_8b(), find_hardware("a100-80g"), ALPHAS_8B, 45 * 10**9)


@cache
def eight_a100(ranks: int = 8) -> Stage:
    """Llama-8B on so many A100."""
    return replace(one_a100(), ranks=ranks, cache_bytes=55 * 10**9, max_model_tokens=131_072, tokens_per_block=64)


@cache
def eight_a100_70b(ranks: int = 8) -> Stage:
    """Llama-70B on eight or four A100, whose weights leave 51 or 34 GB of each."""
    alpha, free = alpha_of_long(), {8: 51, 4: 34}[ranks]
    return replace(eight_a100(ranks), program=llama_70b(), alphas=((LONG, alpha),), cache_bytes=free * 10**9)


TARGETS: Mapping[str, Slo] = {
    "sharegpt": Slo(ttft_s_per_token=3e-3, tpot_s=0.150),
    "azure_code": Slo(ttft_s_per_token=1.5e-3, tpot_s=0.200),
    "arxiv": Slo(ttft_s_per_token=1.5e-3, tpot_s=0.175),
}
RATES: Mapping[str, float] = {"sharegpt": 20.0, "azure_code": 5.5, "arxiv": 4.0}
NAMES: Mapping[str, str] = {"sharegpt": "ShareGPT", "azure_code": "Azure-code", "arxiv": "arXiv-summary"}
LOADS = (
    "lengths of NanoFlow's ShareGPT (mean 289 and 326 tokens), the 2023 Azure trace of code (2,138 and 25) and Vidur's "
    "arXiv summaries (2,563 and 305, cut at 4k); the paper's are known as curves only. Poisson arrivals of 20, 5.5 and "
    "4 a second: the paper's for the first two, and for shorter documents than its own as many tokens a second as "
    "Azure-code's"
)
LAUNCHED = (
    "a step of prompts of 8B costs 27 ms to launch where operations are launched one by one and 4 ms where layers are "
    "graphs, one of 70B 68 and 10 ms: by numbers of layers, from MuxWise's two steps of 70B, if the 100 ms that it "
    "says 256 tokens hold are what their step takes"
)
LEARNED = (
    "every policy decides by what its own paper's estimator has learned from samples of the device, whose steps have "
    "noise of 6.8 % and a slowdown beside prompts of up to 20 % that follows no rule"
)


def lengths(workload: str, count: int, seed: int) -> list[TraceRequest]:
    """Of one of the three workloads, in an order of this seed."""
    rows = sample_trace(f"{workload}_sample.csv")
    found = [TraceRequest(None, row.num_prompt, row.num_output) for row in rows]
    random.Random(f"lengths {seed}").shuffle(found)
    return found[:count]


def over_seeds(work: Callable[[int], Mapping[str, float]], seeds: Sequence[int]) -> dict[str, Sampled]:
    """What every seed gives, by name."""
    found = [work(seed) for seed in seeds]
    return {name: Sampled(tuple(one[name] for one in found)) for name in found[0]}
