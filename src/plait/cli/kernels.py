"""Kernels: `plait bench kernels`, how near the products of a model are to what this machine can do at most.

Owns the table and the JSON object. Products are the model's own, run by the runtime as in a step (`exec.native.trials`)
with weights as cold as they are when the model serves; limits are measured in the same minute. Attention and whole
steps are measured by `--profile` of any command that answers prompts, and in a checkout by bench/kernels.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from plait.build import LoadedModel, load_model, native_config
from plait.cli.machine_rates import MachineRates, measure_rates
from plait.cli.streams import say, show, show_json
from plait.cli.terminal import download_progress
from plait.config.engine_options import EngineOptions
from plait.config.load_options import KernelsOptions
from plait.config.machine import processor_model
from plait.config.option import OptionSources
from plait.core.errors import PlaitError, UsageError
from plait.exec.native import presence
from plait.exec.native.checks import check_program

SCHEMA = "plait.bench.kernels/1"
SAMPLES = 7


@dataclass(frozen=True, slots=True)
class Product:
    """One product of the model at one number of rows; `seconds` of one product, the median of samples."""

    name: str
    rows: int
    seconds: float
    flops_per_s: float
    weight_bytes_per_s: float
    of_limit: float
    """The roofline's time by the measured one: what reading the weights or the multiplications take, the longer."""
    bound: str
    """Which of the two: memory or compute."""


def run_kernels(sources: OptionSources) -> int:
    options, engine_options = sources.read(KernelsOptions), sources.read(EngineOptions)
    if (reason := presence.missing()) is not None:
        raise PlaitError(f"plait bench kernels needs the native runtime: {reason}; install Plait where a compiler is")
    most = engine_options.max_num_batched_tokens
    if max(options.rows) > most:
        raise UsageError(
            f"--rows has {max(options.rows)} but a step has {most}; give less, or --max-num-batched-tokens"
        )
    with download_progress(engine_options.model, quiet=options.quiet) as progress:
        model = load_model(engine_options, progress, datetime.now)
    check_program(model.program)
    from plait import _native

    workers = len(native_config(engine_options, model.config.max_positions)[1].cores)
    if not options.quiet:
        say("measuring the machine's rates")
    rates = measure_rates(_native, workers)
    products = []
    if not options.json:
        show(f"{model.name} on {processor_model()}, {workers} workers")
        show(heading(rates))
    for product in measure_products(model, engine_options, rates, options.rows, quiet=options.quiet):
        products.append(product)
        if not options.json:
            show(row(product))
    if options.json:
        show_json(
            {
                "schema": SCHEMA,
                "model": model.name,
                "processor": processor_model(),
                "rates": asdict(rates),
                "products": [asdict(one) for one in products],
            }
        )
    return 0


def measure_products(
    model: LoadedModel, options: EngineOptions, rates: MachineRates, rows: Sequence[int], *, quiet: bool
) -> Iterator[Product]:
    from plait.exec.native.executor import usable_targets
    from plait.exec.native.lowering import lower
    from plait.exec.native.packing import schemes_of
    from plait.exec.native.tape import NONE
    from plait.exec.native.trials import Model, ProductTrial

    config, workers = native_config(options, model.config.max_positions)
    schemes = schemes_of(model.program, model.weights, config.dtype)
    tape = lower(model.program, schemes)
    target = config.target or usable_targets()[-1]
    trials = Model(tape, model.weights, schemes, workers.cores, target, config.max_step_tokens)
    for name, ops in trials.products().items():
        if not quiet:
            say(f"measuring {name}")
        matrices = [tape.matrices[matrix] for matrix in ops[0].matrix if matrix != NONE]
        numbers = sum(model.weights[one].shape[0] * model.weights[one].shape[1] for one in matrices)
        is_int8 = bool(schemes[matrices[0]].row_group)
        trial = ProductTrial(trials, ops)
        try:
            for num_rows in rows:
                took = [trial.seconds(num_rows, None) for _ in range(SAMPLES + 1)][1:]
                seconds = statistics.median(took) / trial.num_products(num_rows)
                yield product_of(name, num_rows, seconds, numbers, trials.num_bytes(ops[0]), rates, is_int8=is_int8)
        finally:
            trial.close()


def product_of(
    name: str, rows: int, seconds: float, numbers: int, num_bytes: int, rates: MachineRates, *, is_int8: bool
) -> Product:
    """`numbers` of its matrices, which take `num_bytes`."""
    flops = 2.0 * numbers * rows
    compute_s = flops / (rates.int8_per_s if is_int8 else rates.f32_per_s)
    read_s = num_bytes / rates.read_bytes_per_s
    return Product(
        name=name,
        rows=rows,
        seconds=seconds,
        flops_per_s=flops / seconds,
        weight_bytes_per_s=num_bytes / seconds,
        of_limit=max(compute_s, read_s) / seconds,
        bound="compute" if compute_s > read_s else "memory",
    )


def heading(rates: MachineRates) -> str:
    limits = (
        f"limits: reading {rates.read_bytes_per_s / 1e9:.1f} GB/s, float32 {rates.f32_per_s / 1e9:,.0f} GFLOP/s, int8 "
        f"{rates.int8_per_s / 1e9:,.0f} GOP/s"
    )
    return f"{limits}\n{'product':<44}{'rows':>6}{'us':>10}{'GB/s':>8}{'GOP/s':>9}  of its limit"


def row(one: Product) -> str:
    return (
        f"{one.name:<44}{one.rows:>6}{one.seconds * 1e6:>10,.1f}{one.weight_bytes_per_s / 1e9:>8.1f}"
        f"{one.flops_per_s / 1e9:>9,.0f}  {one.of_limit:.0%} ({one.bound})"
    )
