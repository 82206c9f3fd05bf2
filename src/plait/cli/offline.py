"""Offline: by what the order of a batch is judged on this machine.

Owns the choice of the device's rates: what `plait calibrate` measured here, or else the nearest machine that comes with
Plait. Only their ratio decides an order, so a machine that is alike will do.
"""

from __future__ import annotations

from plait.sched.blend.feeds import JobOrder, Ordering
from plait.build import LocalEngine, counted_formats
from plait.config.engine_options import EngineOptions
from plait.config.places import calibration_file
from plait.cost.hardware import HardwareSpec, find_hardware
from plait.cost.lifetime import LifetimeCost

LIKE_THIS = "zen3-2core"


def hardware_here(options: EngineOptions) -> HardwareSpec:
    path = calibration_file(options.cache_dir)
    return find_hardware(str(path) if path.is_file() else LIKE_THIS)


def ordering_of(order: str, options: EngineOptions, engine: LocalEngine) -> Ordering | None:
    """None for the order of the input, which nothing has to be known for."""
    if JobOrder(order) is JobOrder.INPUT:
        return None
    spec, model = hardware_here(options), engine.model
    units = spec.share_units
    lives = LifetimeCost(
        model.program,
        counted_formats(options, model),
        lambda numbers: spec.compute_rate(units, numbers),
        spec.memory_rate(units),
    )
    return Ordering(JobOrder(order), lives, engine.sizes.memory_bytes, options.seed)
