"""Offline: by what the order of a batch is judged on this machine.

Owns the choice of the device's rates: what `plait calibrate` measured here, or else the nearest machine that comes with
Plait. Only their ratio decides an order, so a machine that is alike will do.
"""

from __future__ import annotations

from pathlib import Path

from plait.batch.feeds import LineOrder, Ordering
from plait.build import LocalEngine
from plait.config.engine_options import EngineOptions
from plait.cost.hardware import HardwareSpec, find_hardware
from plait.cost.lifetime import Lifetime
from plait.model.cost import Formats
from plait.model.program import Program

LIKE_THIS = "zen3-2core"


def calibrated_file(options: EngineOptions) -> Path:
    """Where `plait calibrate` keeps what it measured."""
    return options.cache_dir / "hardware" / "this-machine.json"


def hardware_here(options: EngineOptions) -> HardwareSpec:
    path = calibrated_file(options)
    return find_hardware(str(path) if path.is_file() else LIKE_THIS)


def ordering_of(order: str, options: EngineOptions, engine: LocalEngine) -> Ordering | None:
    """None for the order of the input, which nothing has to be known for."""
    if LineOrder(order) is LineOrder.INPUT:
        return None
    spec, program = hardware_here(options), engine.model.program
    lives = Lifetime(
        program,
        Formats(default_cache_bytes=_number_bytes(engine, program)),
        spec.compute_rate(spec.share_units),
        spec.memory_rate(spec.share_units),
    )
    return Ordering(LineOrder(order), lives, engine.sizes.memory_bytes, options.seed)


def _number_bytes(engine: LocalEngine, program: Program) -> float:
    """Of a cached number, scales and padding included."""
    report = None if engine.cache_report is None else engine.cache_report()
    numbers = sum(group.elements_per_token for group in program.cache_groups)
    if report is None or not numbers:
        return Formats().default_cache_bytes
    return sum(group.bytes_per_token for group in report.groups) / numbers
