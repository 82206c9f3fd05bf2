"""Offline: by what the order of a batch is judged on this machine.

Owns the choice of the device's rates: what `plait calibrate` measured here, or else the nearest machine that comes with
Plait. Only their ratio decides an order, so a machine that is alike will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from plait.batch.runner import Cutting
from plait.batch.shards import Shard
from plait.build import LoadedModel, LocalEngine, counted_formats
from plait.config.engine_options import EngineOptions
from plait.config.places import calibration_file
from plait.core.errors import UsageError
from plait.cost.calibrated import cost_model
from plait.cost.hardware import HardwareSpec, find_hardware, read_hardware
from plait.cost.lifetime import LifetimeCost
from plait.model.cost import Formats, Parallel
from plait.model.program import Program
from plait.sched.blend.choosing import AnyOrdering, Choosing
from plait.sched.blend.feeds import JobOrder, Ordering
from plait.sched.blend.forecast import Machine
from plait.sched.blend.prices import priced, step_costs

LIKE_THIS = "zen3-2core"
AUTO = "auto"
"""Whatever is said to be the shortest."""
AHEAD = 4
"""Lines that a blended job hands out beyond its memory: with none, a small cache stands half empty until the next one
has come; with four, blending takes no longer than depth first in memory of two prompts
(docs/lab/2026-11-30-orders-and-blocks.md).
"""


def hardware_here(options: EngineOptions, warn: Callable[[str], None]) -> HardwareSpec:
    """Nobody who orders a batch asked for the file of a calibration: one that cannot be read is a warning."""
    path = calibration_file(options.cache_dir)
    try:
        if path.is_file():
            return read_hardware(path, str(path))
    except (UsageError, OSError) as error:
        warn(
            f"warning: batches are ordered by the rates of {LIKE_THIS}, not of this machine: {error}; "
            "plait calibrate measures anew"
        )
    return find_hardware(LIKE_THIS)


def cutting_of(shard: Shard, options: EngineOptions, engine: LocalEngine) -> Cutting:
    """By rates and bytes that are the same on all machines, whatever is stored or measured here."""
    model = engine.model
    lives = _lives(find_hardware(LIKE_THIS), model.program, Formats())
    return Cutting(shard, lives, replace(engine.client.model, max_model_tokens=model.config.max_positions))


def ordering_of(
    order: str, options: EngineOptions, engine: LocalEngine, in_flight: int, warn: Callable[[str], None]
) -> AnyOrdering | None:
    """None for the order of the input, which nothing has to be known for."""
    if order == JobOrder.INPUT:
        return None
    spec = hardware_here(options, warn)
    base = blending_on(spec, options, engine)
    return (
        Choosing(base, machine_of(spec, options, engine, in_flight))
        if order == AUTO
        else replace(base, order=JobOrder(order))
    )


def blending_on(spec: HardwareSpec, options: EngineOptions, engine: LocalEngine) -> Ordering:
    formats = counted_formats(options, engine.model)
    cost = cost_model(engine.model.program, formats, spec, Parallel(1))
    costs = partial(step_costs, cost, spec.share_units, options.max_num_seqs, options.max_num_batched_tokens)
    return Ordering(
        JobOrder.BLEND,
        _lives(spec, engine.model.program, formats),
        engine.sizes.memory_bytes,
        options.seed,
        ahead=AHEAD,
        holds_once=True,
        costs=costs,
    )


def lives_here(spec: HardwareSpec, options: EngineOptions, model: LoadedModel) -> LifetimeCost:
    """What requests ask of this machine over their lives."""
    return _lives(spec, model.program, counted_formats(options, model))


def _lives(spec: HardwareSpec, program: Program, formats: Formats) -> LifetimeCost:
    units = spec.share_units
    return LifetimeCost(program, formats, lambda numbers: spec.compute_rate(units, numbers), spec.memory_rate(units))


def machine_of(spec: HardwareSpec, options: EngineOptions, engine: LocalEngine, in_flight: int) -> Machine:
    """Steps are fused on this machine: what is read waits for what is computed. Rates are those of whole steps as they
    are priced, by what was measured here if anything was.
    """
    model = engine.model
    formats = counted_formats(options, model)
    machine = Machine(
        engine.sizes.memory_bytes,
        options.max_num_batched_tokens,
        interference=1.0,
        rows=options.max_num_seqs,
        tells=False,
        step_overhead_s=spec.step_overhead_s,
        row_overhead_s=spec.seq_overhead_s,
        block_tokens=options.block_size,
        in_flight=in_flight,
    )
    cost = cost_model(model.program, formats, spec, Parallel(1))
    return priced(machine, cost, spec.share_units, _lives(spec, model.program, formats))
