"""Bullet's comparison of chunk sizes: the real engine on a simulated A100, chunks of 1,024 and of 2,048 tokens.

Owns the calibration of each setting on the utilisation published for its chunks; what queues, batches and latencies
make of it is the simulation's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.step import ChunkShape, StepShape
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.reproduce.band import Band, Between, Near
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.bullet_chunks import (
    FIRST,
    LAST,
    LOSS_2K,
    LOSSES,
    PEAK,
    PROMPT,
    SUSTAINED,
    UTILISATION,
    chunk_times,
)
from plait.reproduce.figure import BULLET, Evidence, Figure, Reference
from plait.reproduce.models import BF16_NEAR_CACHE, llama_8b
from plait.reproduce.simulated import Reading, at_once, compare, mean_of, poisson, sample_trace
from plait.sim.arrivals import TraceRow
from plait.sim.replica import ReplicaSpec

SMALL, LARGE = "chunks of 1,024", "chunks of 2,048"
UTILISATIONS = {1024: (FIRST, LAST), 2048: (PEAK * (1 - LOSS_2K),) * 2}
SAMPLE = "azure_code_sample.csv"
RATE = 5.5
"""Requests per second: the end of the paper's sweep of this workload."""
SEEDS = range(5)
CACHE_BYTES = 45 * 10**9
"""80 GB without weights and buffers."""

TTFT, TPOT = "TTFT, 1,024 over 2,048", "TPOT, 1,024 over 2,048"
THROUGHPUT = "tokens/s of a full queue, 2,048 over 1,024"
DIRECTION = (
    "published as one number over three workloads and their rates; here Azure-code's first 400 requests at 5.5 a "
    "second, so only its direction is compared"
)
FULL = "published over three workloads and their rates; here Azure-code's first 400 requests, all waiting at once"


def alpha(chunk: int) -> float:
    """Calibration factor with which the chunks of a prompt of 16k tokens take what the utilisation says."""
    device = find_hardware("a100-80g")
    model = RooflineModel(llama_8b(), BF16_NEAR_CACHE, device)
    shapes = [StepShape((ChunkShape(start, chunk, 1),)) for start in range(0, PROMPT, chunk)]
    bare_s = sum(model.price(shape, device.share_units).expected_s - device.step_overhead_s for shape in shapes)
    return sum(chunk_times(chunk, *UTILISATIONS[chunk])) / bare_s


def setting(chunk: int) -> ReplicaSpec:
    return ReplicaSpec(
        llama_8b(),
        BF16_NEAR_CACHE,
        find_hardware("a100-80g"),
        cache_bytes=CACHE_BYTES,
        max_step_tokens=chunk,
        max_rows=256,
        max_model_tokens=PROMPT,
        alpha=alpha(chunk),
    )


READINGS: dict[str, Reading] = {
    TTFT: lambda reports: mean_of(reports[SMALL].ttft_s) / mean_of(reports[LARGE].ttft_s),
    TPOT: lambda reports: mean_of(reports[SMALL].tpot_s) / mean_of(reports[LARGE].tpot_s),
}


def _work_out() -> Answers:
    return work_out(sample_trace(SAMPLE), SEEDS)


def work_out(lengths: Sequence[TraceRow], seeds: Sequence[int]) -> Answers:
    """`lengths` in their order, with arrivals of each seed; then all of them at once."""
    settings = {SMALL: setting(1024), LARGE: setting(2048)}
    found = compare(settings, [poisson(lengths, RATE, seed) for seed in seeds], READINGS)
    full: dict[str, Reading] = {
        THROUGHPUT: lambda reports: reports[LARGE].total_tokens_per_s / reports[SMALL].total_tokens_per_s
    }
    return found | compare(settings, [at_once(lengths)], full)


def _figure(name: str, what: str, published: str, band: Band, note: str = "") -> Figure:
    return Figure(
        name,
        Reference(BULLET, "4", what),
        published,
        band,
        "x",
        Evidence.SIMULATED,
        calibrated_on=(SUSTAINED, UTILISATION, LOSSES),
        note=note,
    )


CASE = Case(
    "bullet-chunk-size",
    "chunks of 1,024 and 2,048 tokens, Azure-code on one A100",
    BULLET,
    (
        _figure(TTFT, "SGLang-2048 has 3.20x better TTFT than -1024", "3.20", Between(low=1.0), DIRECTION),
        _figure(TPOT, "its TPOT is 0.78x as good", "0.78", Between(high=1.0), DIRECTION),
        _figure(THROUGHPUT, "its throughput is 1.18x", "1.18", Near(0.1), FULL),
    ),
    _work_out,
)
