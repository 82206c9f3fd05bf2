"""Jenga's fragmentation (figure 16): how much of the memory is held for nothing while an engine runs.

Owns the loads and the claims. Every layout holds the same sequences, and what they need is the same in all (`waste`).
"""

from __future__ import annotations

import random
from functools import cache

from plait.core.errors import InvariantError
from plait.cost.hardware import find_hardware
from plait.inspect.programs import find_model
from plait.kv.layouts.serving import cut
from plait.kv.rules import rules_without
from plait.model.cache_layout import plan_layout
from plait.model.cache_type import CacheType
from plait.model.cost import Formats
from plait.model.program import Program
from plait.reproduce.band import Band, Between, Within
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.jenga_models import Load, articles, ministral, of_lengths
from plait.reproduce.figure import JENGA, Evidence, Figure, Reference
from plait.reproduce.waste import WasteLog
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, SimulatedMemory, watched_replica

MINISTRAL_BYTES, GEMMA_BYTES = 55 * 10**9, 16 * 10**9
BLOCK = 16
AWARE, UNAWARE = "27B, owners", "27B, without owners"


def measure(program: Program, kinds: Program, layout: str, cache_bytes: int, load: Load) -> WasteLog:
    """`kinds`: the model, whose needs are the same whatever memory makes of it. `layout` "lcm" and "lcm, no owners":
    the paper's page, the least common multiple of all blocks.
    """
    rules = rules_without(("request-awareness",) if layout.endswith("no owners") else ())
    if layout.startswith("lcm"):
        laid = plan_layout(program, memory_bytes=cache_bytes, tokens_per_block=BLOCK, cache_type=CacheType.F16)
    else:
        cutting = cut(program, layout, BLOCK, CacheType.F16)
        program, laid = cutting.program, cutting.plan(cache_bytes)
    spec = ReplicaSpec(
        program,
        Formats(default_weight_bytes=2.0, default_cache_bytes=2.0, activation_bytes=2.0),
        find_hardware("h100-80g"),
        cache_bytes=cache_bytes,
        max_step_tokens=2048,
        max_rows=256,
        max_model_tokens=131_072,
        enable_prefix=False,
        check_plans=False,
        memory=SimulatedMemory(laid, rules),
    )
    log = WasteLog(kinds.cache_groups, laid.page_bytes)
    report = simulate(load, watched_replica(spec, log.watch), log)
    if report.num_failed or report.num_refused:
        raise InvariantError(f"{report.num_failed} requests failed and {report.num_refused} were refused")
    return log


@cache
def gemma_27b() -> Program:
    return find_model("google/gemma-3-27b-it").program


def mixed(count: int = 240, seed: int = 0) -> Load:
    """Three short requests for each long one, with answers of any length."""
    dice = random.Random(seed)
    lengths = [
        (dice.randint(4000, 9000) if index % 4 == 0 else dice.randint(50, 400), dice.randint(20, 300))
        for index in range(count)
    ]
    return of_lengths(lengths)


def work_out() -> Answers:
    model, load = ministral(2.0), articles(32, 53_600, 80_000, 150)
    found: dict[str, float] = {}
    for layout in ("uniform", "vllm", "max-page", "static", "paged"):
        program = model.uniform if layout == "uniform" else model.typed
        log = measure(program, model.typed, layout, MINISTRAL_BYTES, load)
        found[f"Ministral, {layout}"] = 100 * log.mean
        if layout in ("uniform", "paged"):
            found[f"Ministral, {layout}, at worst"] = 100 * log.worst
    kinds = gemma_27b()
    aware, unaware, paged = (
        measure(kinds, kinds, layout, GEMMA_BYTES, mixed()).mean for layout in ("lcm", "lcm, no owners", "paged")
    )
    return found | {AWARE: 100 * aware, UNAWARE: unaware / aware, "27B, paged": 100 * paged}


NEED = (
    "held beyond what the sequences need, in the mean over time; 32 prompts of 53,600 to 80,000 tokens, whose mean "
    "gives the paper's number, on an H100 with 55 GB of cache"
)
MIXED = (
    "Gemma-3-27B in 16 GB and pages of the least common multiple, 34 MB: three short requests for each of 4,000 to "
    "9,000 tokens"
)
OWNERS = (
    "pages of one's own hold more for nothing while their owner runs; what they gain, whole pages that come back, this "
    "load does not need"
)


def _figures() -> tuple[Figure, ...]:
    def figure(name: str, published: str, band: Band, note: str) -> Figure:
        return Figure(name, Reference(JENGA, "7.2", name), published, band, " %", Evidence.SIMULATED, note=note)

    return (
        figure("Ministral, uniform", "38.2", Within(2.0), NEED),
        figure("Ministral, paged", "0.04", Between(high=0.1), NEED),
        figure("Ministral, uniform, at worst", "56.25", Between(low=38.2), NEED),
        figure("Ministral, paged, at worst", "0.04", Between(high=0.1), NEED),
        figure("Ministral, max-page", "more", Between(low=0.1), NEED),
        figure("Ministral, static", "below 0.1", Between(high=0.1), NEED),
        figure("Ministral, vllm", "below 0.1", Between(high=0.1), NEED),
        figure(AWARE, "near zero", Between(high=1.0), f"{MIXED}; {OWNERS}"),
        figure("27B, paged", "near zero", Between(high=1.0), MIXED),
        Figure(
            UNAWARE,
            Reference(JENGA, "7.2", UNAWARE),
            "more",
            Between(low=1.0),
            "x",
            Evidence.SIMULATED,
            note=f"waste over that with owners; {OWNERS}",
        ),
    )


CASE = Case("jenga-fragmentation", "what memory holds for nothing while an engine runs", JENGA, _figures(), work_out)
