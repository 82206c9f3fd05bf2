"""BlendServe beside other ways to use devices: prompts and decode on devices of their own (figure 8), and lanes.

Owns the bounds. The split devices and the lanes are given their least time: they hand over for nothing and nobody waits
for the other; where even that is longer than a run of the others, the claim holds whatever they would really take.
"""

from __future__ import annotations

from plait.cost.density import step_s
from plait.cost.hardware import find_hardware
from plait.cost.interleaved import INTERFERENCE
from plait.reproduce.band import Band, Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.blendserve_densities import MIXES
from plait.reproduce.cases.blendserve_orders import STEP_TOKENS, mix_of
from plait.reproduce.figure import BLENDSERVE, Evidence, Figure, Reference
from plait.reproduce.models import LLAMA_8B_ON_A100
from plait.reproduce.offline_jobs import DrawnJob, draw_job
from plait.sched.blend.feeds import JobOrder, Ordering
from plait.sched.blend.forecast import Machine

REQUESTS, MEMORY_BYTES = 40_000, 15e9
SPLITS = ((1, 1), (1, 2), (2, 1), (1, 3))
"""Devices of prompts and of decode."""
DEVICE = "a100-80g"
SERIAL = "the split at its least time over colocated steps one after the other in depth-first order, as many devices"
LANES = "two partitions at their least time, the best split of the SMs; memory saturates from 30 of 108 SMs on"


def split_s(job: DrawnJob, prefill: int, decode: int) -> float:
    """The longer side, each busy from beginning to end; all beginnings are found again."""
    prompts_s = job.tree.num_distinct() * job.lives.prompt_token_s
    answers_s = sum(job.outputs) * job.lives.output_token_s + job.memory_s
    return max(prompts_s / prefill, answers_s / decode)


def lanes_s(job: DrawnJob) -> float:
    """Prompts on some units and decode on the others, both from beginning to end."""
    hardware = find_hardware(DEVICE)
    units, knee = hardware.share_units, hardware.memory_knee_units
    prompts_s = job.tree.num_distinct() * job.lives.prompt_token_s
    tokens_s = sum(job.outputs) * job.lives.output_token_s

    def seconds(decode: int) -> float:
        answers_s = tokens_s * units / decode + job.memory_s / min(1.0, decode / knee)
        return max(prompts_s * units / (units - decode), answers_s)

    return min(map(seconds, range(hardware.granule, units, hardware.granule)))


def _work_out() -> Answers:
    found: dict[str, float] = {}
    for name, (density, sharing, *_) in MIXES.items():
        job = draw_job(LLAMA_8B_ON_A100, mix_of(density, sharing, REQUESTS))
        dfs = Ordering(JobOrder.DFS, job.lives, MEMORY_BYTES)
        serial_s = job.run(dfs, Machine(MEMORY_BYTES, STEP_TOKENS)).seconds
        speeds = {(p, d): serial_s / (p + d) / split_s(job, p, d) for p, d in SPLITS}
        found |= {f"{name}, {p}P{d}D over colocated": speed for (p, d), speed in speeds.items()}
        found[f"{name}, 2P1D over 1P1D"] = speeds[2, 1] / speeds[1, 1]
        best_s = step_s(job.compute_s, job.memory_s, INTERFERENCE)
        found[f"{name}, interleaved at best over lanes at best"] = lanes_s(job) / best_s
        found[f"{name}, interleaved at best over one after the other"] = (job.compute_s + job.memory_s) / best_s
    return found


def _figure(name: str, section: str, published: str, band: Band, note: str) -> Figure:
    reference = Reference(BLENDSERVE, section, name)
    return Figure(name, reference, published, band, "x", Evidence.SIMULATED, note=note)


def _figures_of(name: str) -> tuple[Figure, ...]:
    below = Between(high=1.0)
    return (
        *(_figure(f"{name}, {p}P{d}D over colocated", "Fig. 8", "below 1", below, SERIAL) for p, d in SPLITS),
        _figure(f"{name}, 2P1D over 1P1D", "Fig. 8", "below 1", below, SERIAL),
        _figure(f"{name}, interleaved at best over lanes at best", "4", "ours: no worse", Between(low=0.97), LANES),
        _figure(f"{name}, interleaved at best over one after the other", "4", "up to 1.44", Between(1.0, 1.6), LANES),
    )


CASE = Case(
    "blendserve-splits",
    "devices and partitions of their own for prompts and decode",
    BLENDSERVE,
    tuple(figure for name in MIXES for figure in _figures_of(name)),
    _work_out,
)
