"""Calibrate from: `plait calibrate --fit-from`, a hardware file out of a benchmark that somebody ran elsewhere.

Owns which model and device the results are taken to be of, and the report. Measures nothing; needs no weights.
Invariant: the file says that it rests on a benchmark's moments and on how many.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from plait.cli.streams import show, show_json
from plait.config.calibrate_options import CalibrateOptions
from plait.config.engine_options import EngineOptions
from plait.core.errors import UsageError
from plait.core.own_file import check_replaceable
from plait.cost.alpha import constant_alpha
from plait.cost.benchmarks import Moment, read_moments, samples_of
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import Calibration, CountedAs
from plait.cost.fit import fit_calibration
from plait.cost.guard import GuardTable
from plait.cost.hardware import FILE_BEGINNING, HardwareSpec, find_hardware, write_hardware
from plait.cost.roofline import RooflineModel
from plait.inspect.programs import BareModel, find_model
from plait.model.cost import Formats

SCHEMA = "plait.calibrate.from/1"
CACHE_BYTES = {"auto": 2.0, "f32": 4.0, "f16": 2.0, "bf16": 2.0, "int8": 1.0}
GPU_STEP_BYTES, CPU_STEP_BYTES = 2.0, 4.0
"""Of a number between operations."""
ATTENTION_REUSE = 16.0
"""Tiles of a prompt that read keys together through a GPU's second cache."""


def run_fit_from(options: CalibrateOptions, engine_options: EngineOptions) -> int:
    assert options.fit_from is not None
    if options.hardware is None:
        raise UsageError("--fit-from needs the device that was measured; name it with --hardware")
    if options.output is None:
        raise UsageError("--fit-from writes a hardware file; say where with -o FILE")
    check_replaceable(options.output, FILE_BEGINNING, "--output", "hardware file")
    hardware, model = find_hardware(options.hardware), find_model(engine_options.model)
    moments = read_moments(options.fit_from)
    spec, rows = fit(hardware, model, moments, CACHE_BYTES[engine_options.kv_cache_dtype])
    write_hardware(spec, options.output, f"{hardware.name}, fitted to {len(moments)} moments of a benchmark")
    if options.json:
        found = {"schema": SCHEMA, "file": str(options.output), "model": model.facts.name, "moments": rows}
        show_json(found)
        return 0
    show(f"{model.facts.name} on {hardware.name}: {len(moments)} moments")
    for row in rows:
        show(
            f"  {row['source']}: {row['measured_s']:.4g} s, priced {row['priced_s']:.4g} s, roof {row['roof_s']:.4g} s"
        )
    show(f"{options.output} ({options.output.stat().st_size:,} bytes)")
    return 0


def fit(
    hardware: HardwareSpec, model: BareModel, moments: list[Moment], cache_bytes: float
) -> tuple[HardwareSpec, list[dict[str, object]]]:
    """The device with a calibration, and how each moment comes out of it."""
    is_gpu = hardware.unit != "core"
    formats = Formats(
        default_weight_bytes=model.bytes_per_weight,
        default_cache_bytes=cache_bytes,
        activation_bytes=GPU_STEP_BYTES if is_gpu else CPU_STEP_BYTES,
        attention_reuse=ATTENTION_REUSE if is_gpu else 1.0,
    )
    roofline = RooflineModel(model.program, formats, hardware)
    about = Calibration(
        model=model.facts.name,
        calibrated_on=f"{hardware.name}, a benchmark read on {datetime.now().date().isoformat()}",
        evidence="benchmark",
        num_steps=1,
        alpha=constant_alpha(),
        step_overhead_s=0.0,
        seq_overhead_s=0.0,
        counted=CountedAs.of(model.program.num_parameters, formats, hardware.numbers),
    )
    samples = samples_of(moments, roofline, hardware.share_units)
    no_guard = GuardTable((), (1.0,), (0.0,), (1.0,), (1.0,), {})
    calibration = fit_calibration(samples, roofline, about, no_guard)
    return replace(hardware, calibration=calibration), _rows(
        moments, roofline, CalibratedModel(roofline, calibration), hardware.share_units
    )


def _rows(
    moments: list[Moment], roofline: RooflineModel, model: CalibratedModel, share: int
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for moment in moments:
        roof_s = priced_s = 0.0
        for shape, count in ((moment.prefill, moment.num_prefills), (moment.decode, moment.num_decodes)):
            if shape is not None:
                roof_s += count * roofline.roof(shape, share).seconds
                priced_s += count * model.price(shape, share).expected_s
        rows.append({"source": moment.source, "measured_s": moment.seconds, "priced_s": priced_s, "roof_s": roof_s})
    return rows
