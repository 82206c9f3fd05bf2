"""Loads on a simulated A100 that bring a policy into every situation it has a rule for, and what it decided there."""

from __future__ import annotations

from dataclasses import replace

from tests.properties.engine_load import SMOLLM2

from plait.core.request import Slo
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.model.cost import Formats
from plait.model.families import build_program
from plait.sched.multiplex.presets import Preset
from plait.sched.multiplex.situation import Choice, Situation
from plait.sim.arrivals import Lengths, arrivals_of, poisson_trace
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, replica
from plait.sim.report import Report

MODEL = replace(
    SMOLLM2,
    num_layers=16,
    hidden=4096,
    ffn_hidden=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    layer_visibility=SMOLLM2.layer_visibility[:16],
)
"""Half of Llama 8B with a small vocabulary."""
PROGRAM = build_program(replace(MODEL, rope=replace(MODEL.rope, rotary_dim=128)))
FORMATS = Formats(default_weight_bytes=2.0, default_cache_bytes=2.0, activation_bytes=2.0)
DEVICE = find_hardware("a100-80g")
UNITS, LAYERS = DEVICE.share_units, len(PROGRAM.spans)
ALPHA = 1.5
COST = RooflineModel(PROGRAM, FORMATS, DEVICE, alpha=ALPHA)
SIZE = 1024

Decisions = list[tuple[Situation, Choice]]


def play(
    preset: Preset, rate: float, slo: Slo, *, count: int = 100, seed: int = 1, mean: int = 700, size: int = SIZE
) -> tuple[Decisions, Report]:
    decisions: Decisions = []
    spec = ReplicaSpec(
        PROGRAM,
        FORMATS,
        DEVICE,
        cache_bytes=20 * 10**9,
        max_step_tokens=size,
        max_rows=128,
        max_model_tokens=8192,
        alpha=ALPHA,
        preset=preset,
        slo=slo,
        observe=lambda situation, choice: decisions.append((situation, choice)),
    )
    rows = poisson_trace(rate, count, Lengths(mean, 1.2, 6000), Lengths(60, 0.8, 400), seed=seed)
    return decisions, simulate(arrivals_of(rows, PROGRAM.vocab_size), replica(spec))
