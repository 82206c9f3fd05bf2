"""Decisions: what choosing costs on a simulated device of many units, in processor time of this machine.

Owns the measurement: situations are recorded in a simulation, then each is decided again by a model that has priced
nothing before, as in an engine, where contexts have grown with every step. Knows nothing of real cores.
"""

from __future__ import annotations

import gc
import time
from statistics import median

from plait.core.request import Slo
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.reproduce.models import BF16_NEAR_CACHE, llama_8b
from plait.sched.multiplex.decide import Setting, decide
from plait.sched.multiplex.presets import BULLET, MUXWISE, PLAIT, TEMPORAL, Preset, shares_of, timed_chunks
from plait.sched.multiplex.pricing import Prices
from plait.sched.multiplex.situation import Choice, Situation
from plait.sim.arrivals import Lengths, arrivals_of, poisson_trace
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, replica

DEVICE = find_hardware("a100-80g")
STEP_TOKENS = 1024
TARGETS = Slo(ttft_s_per_token=3e-3, itl_s=0.05)
REPEATS = 5


def record(preset: Preset, rows: int) -> list[Situation]:
    """Situations in which prompts and decode are both there, with about so many rows at most."""
    found: list[Situation] = []

    def observe(situation: Situation, choice: Choice) -> None:
        if situation.prefill is not None and situation.decoding:
            found.append(situation)

    spec = ReplicaSpec(
        llama_8b(),
        BF16_NEAR_CACHE,
        DEVICE,
        cache_bytes=45 * 10**9,
        max_step_tokens=STEP_TOKENS,
        max_rows=rows,
        max_model_tokens=8192,
        alpha=1.6,
        preset=preset,
        slo=TARGETS,
        observe=observe,
        check_plans=False,
    )
    load = poisson_trace(30.0, 4 * rows, Lengths(500, 1.0, 4000), Lengths(200, 0.6, 800), seed=1)
    simulate(arrivals_of(load, spec.program.vocab_size), replica(spec))
    return found


def seconds_of(preset: Preset, situations: list[Situation]) -> float:
    """Of a decision, on average, when no price is known."""
    model = RooflineModel(llama_8b(), BF16_NEAR_CACHE, DEVICE, alpha=1.6)
    shares = () if preset.is_fused else shares_of(preset, DEVICE.share_units, DEVICE.granule)
    setting = Setting(preset, Prices(model, DEVICE.share_units, len(llama_8b().spans)), shares, STEP_TOKENS)
    # What was recorded is no heap of an engine: a collector that walks all of it would be measured, too.
    gc.collect()
    gc.freeze()
    begin = time.process_time()
    for situation in situations:
        decide(situation, setting)
    return (time.process_time() - begin) / len(situations)


def show_decisions(rows: int) -> None:
    """A line for each preset."""
    for preset in (timed_chunks(0.03), BULLET, MUXWISE, TEMPORAL, PLAIT):
        situations = record(preset, rows)
        microseconds = median(seconds_of(preset, situations) for _ in range(REPEATS)) * 1e6
        mean_rows = sum(len(one.decoding) for one in situations) / len(situations)
        print(
            f"{preset.name:9} {microseconds:7.0f} us a decision, {len(situations)} with {mean_rows:.0f} rows on average"
        )
