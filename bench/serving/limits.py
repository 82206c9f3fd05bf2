"""Limits: what the machine could do at most, and how far below that a workload stayed.

Owns the reading of what `plait bench limits` printed, and the bound of each workload: ideal steps, each as long as its
arithmetic or its reading of weights and cache takes, whichever is longer. Invariant: a bound forgives nothing, so no
correct engine with the same weights and numbers can be faster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.cli.limits import LimitsModule
from plait.config.machine import available_memory_bytes, num_cores
from plait.core.step import ChunkShape, StepShape
from plait.model.cost import Formats
from plait.model.program import Program

from .workloads import Sizes, Workload

CACHE_BYTES = 2.0
"""Of one number in an ideal cache: 16 bits, as every engine offers."""

BIG_BYTES = 1 << 30
ARITHMETIC = ("f32", "int8", "bf16")


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Of all cores together. `operations_per_s` by kind of number."""

    operations_per_s: Mapping[str, float]
    read_bytes_per_s: float


def limits_from(document: Mapping[str, Any]) -> MachineLimits:
    """From the JSON object of `plait bench limits`."""
    kinds: dict[str, float] = {}
    for rate in document["compute"]:
        kinds[rate["kind"]] = max(kinds.get(rate["kind"], 0.0), rate["best_per_s"])
    largest = max(rate["num_bytes"] for rate in document["read"])
    reads = [rate["best_per_s"] for rate in document["read"] if rate["num_bytes"] == largest]
    return MachineLimits(kinds, max(reads))


def read_limits(path: Path) -> MachineLimits:
    """From a file of what `plait bench limits` printed: its last line counts."""
    return limits_from(json.loads(path.read_text(encoding="utf-8").splitlines()[-1]))


def measure(native: LimitsModule, *, quick: bool) -> MachineLimits:
    """Only what bounds need: the best rates on all cores."""
    threads, samples = num_cores(), 3 if quick else 9
    kinds: dict[str, float] = {}
    for kind, target in native.limits_loops():
        kinds[kind] = max(kinds.get(kind, 0.0), *native.limits_compute(kind, target, threads, samples, 0.02))
    size = min(BIG_BYTES >> 3 if quick else BIG_BYTES, available_memory_bytes() // 2)
    return MachineLimits(kinds, max(native.limits_read(size, threads, samples, 0.1)))


@dataclass(frozen=True, slots=True)
class Weights:
    """What bounds depend on besides the model: bytes of all weights, and in which numbers products are computed."""

    num_bytes: int
    arithmetic: str


def bound(workload: Workload, sizes: Sizes, program: Program, weights: Weights, limits: MachineLimits) -> float | None:
    """The workload's headline figure at the limit; None where arrivals decide, or the machine lacks such numbers."""
    if weights.arithmetic not in limits.operations_per_s:
        return None

    # Sequences with one beginning may read it together, so an ideal engine reads it in no time.
    reads_cache = workload.name != "W4"

    def seconds(steps: Iterable[StepShape]) -> float:
        return sum(step_s(program, step, weights, limits, reads_cache=reads_cache) for step in steps)

    if workload.name == "W1":
        steps = decode_steps(1, sizes.prompt_tokens, sizes.output_tokens)
        return len(steps) / seconds(steps)
    if workload.name == "W2":
        return sizes.long_prompt_tokens / seconds([StepShape((ChunkShape(0, sizes.long_prompt_tokens, 1),))])
    many = sizes.num_requests
    if workload.name == "W3":
        prompts = StepShape((ChunkShape(0, sizes.prompt_tokens, 1),) * many)
        steps = [prompts, *decode_steps(many, sizes.prompt_tokens, sizes.output_tokens)]
        return many * sizes.output_tokens / seconds(steps)
    if workload.name == "W4":
        beginning = StepShape((ChunkShape(0, sizes.shared_tokens, 0),))
        own = StepShape((ChunkShape(sizes.shared_tokens, sizes.own_tokens, 1),) * many)
        rest = decode_steps(many, sizes.shared_tokens + sizes.own_tokens, sizes.shared_output_tokens)
        return seconds([beginning, own, *rest])
    return None


def decode_steps(num_sequences: int, prompt_tokens: int, output_tokens: int) -> list[StepShape]:
    """The steps behind the first token, which comes with the prompt."""
    return [StepShape((ChunkShape(prompt_tokens + place, 1, 1),) * num_sequences) for place in range(output_tokens - 1)]


def step_s(
    program: Program, shape: StepShape, weights: Weights, limits: MachineLimits, *, reads_cache: bool = True
) -> float:
    numbers = sum(spec.num_elements for spec in program.weights.values())
    formats = Formats(default_weight_bytes=weights.num_bytes / numbers, default_cache_bytes=CACHE_BYTES)
    costs = program.cost(shape, formats)
    products = sum(cost.flops * cost.count for cost in costs if cost.kind == "Linear")
    others = sum(cost.flops * cost.count for cost in costs) - products
    read = sum((cost.weight_bytes + reads_cache * cost.cache_read) * cost.count for cost in costs)
    compute_s = products / limits.operations_per_s[weights.arithmetic] + others / limits.operations_per_s["f32"]
    return max(compute_s, read / limits.read_bytes_per_s)
