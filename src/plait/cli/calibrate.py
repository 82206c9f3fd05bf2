"""Calibrate: `plait calibrate`, what steps of a model take on this machine, for the cost model.

Owns the order of measuring, the hardware file that comes of it and the report. Which steps are measured is in
`calibrate_states`, how a step is run in `step_bench`, how tables are fitted in `plait.cost.fit`.
Invariant: errors that are printed are of steps that nothing was fitted to; nothing is written before all is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from math import fsum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from plait.build import LoadedModel, choose_executor, load_executor, load_model
from plait.cli.calibrate_report import Outcome, errors_by_kind, json_report, lines
from plait.cli.calibrate_states import Limits, State, guard_edges, states
from plait.cli.machine_rates import MachineRates, measure_rates
from plait.cli.streams import say, show, show_json
from plait.cli.terminal import download_progress
from plait.cli.tune import QUIET_SHARE, others_share
from plait.config.calibrate_options import CalibrateOptions
from plait.config.engine_options import EngineOptions
from plait.config.machine import available_memory_bytes, processor_model, processor_seconds
from plait.config.option import OptionSources
from plait.config.places import calibration_file
from plait.config.schedulers import DEFAULT_SCHEDULER
from plait.core.clock import RealClock
from plait.core.errors import PlaitError, UsageError
from plait.core.own_file import check_replaceable
from plait.cost.alpha import constant_alpha
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import Calibration, CountedAs
from plait.cost.estimators import held_out
from plait.cost.fit import fit_calibration, fit_scatter
from plait.cost.hardware import ATTENTION, FILE_BEGINNING, Basis, Figure, HardwareSpec, write_hardware
from plait.cost.roofline import RooflineModel
from plait.cost.solo import Sample, decode_shape
from plait.exec.native import presence
from plait.exec.native.tune_table import check_folder
from plait.model.cache_layout import token_bytes
from plait.model.cost import Formats

if TYPE_CHECKING:
    from plait.cli.engine_gaps import EngineStep
    from plait.cli.step_bench import StepBench

STEPS_S, QUICK_STEPS_S = 100.0, 30.0
"""Of measuring steps; what is not reached again by then has fewer samples."""
MOST_ROUNDS = 9
_REPEATS = 2
"""Steps of one state in a row that count."""
_VISITS, _SHORT_S = 3, 0.1
"""Of a state in a round, if one takes no longer and there is time: steps of a few milliseconds are disturbed most.
"""
_ALONE_VISITS = 5
_USUAL_ALPHA = 1.6
"""What steps take by the roofs of a machine, where nothing is known yet: to say how long measuring them will take."""
_BESIDE_REPEATS, _BESIDE_S = 4, 0.5
_BENCH_TOKENS = 40_000
"""That stand before others, at most: more than fits into caches many times over."""
GAP_REPEATS = 3


Choice = Callable[[Sequence[State], int], Sequence[State]]
"""Which states to measure on so many units."""


def everything(wanted: Sequence[State], units: int) -> Sequence[State]:
    return wanted


@dataclass(frozen=True, slots=True)
class Measured:
    """Samples that tables are fitted to, those that are kept back, and steps of the whole engine."""

    units: int
    rates: MachineRates
    fitted: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    engine_steps: tuple[EngineStep, ...] = ()

    def with_more(self, more: Measured) -> Measured:
        """What was measured at another time, too."""
        return Measured(
            self.units,
            self.rates,
            (*self.fitted, *more.fitted),
            (*self.held_out, *more.held_out),
            (*self.engine_steps, *more.engine_steps),
        )


def run_calibrate(sources: OptionSources) -> int:
    options, engine_options = sources.read(CalibrateOptions), sources.read(EngineOptions)
    if options.fit_from is not None:
        from plait.cli.calibrate_from import run_fit_from

        return run_fit_from(options, engine_options)
    if options.hardware is not None:
        raise UsageError(f"--hardware is {options.hardware} but steps are measured here; give --fit-from too")
    if (reason := presence.missing()) is not None:
        raise PlaitError(f"plait calibrate needs the native runtime: {reason}; install Plait where a C++ compiler is")
    if engine_options.executor == "reference":
        raise UsageError("--executor is reference but only the native executor is measured; leave it out")
    if engine_options.profile is not None:
        raise UsageError(f"--profile is {engine_options.profile} but it is for what is served; leave it out")
    if engine_options.speculative != "off" or engine_options.scheduler != DEFAULT_SCHEDULER:
        said = f"--scheduler {engine_options.scheduler}, --speculative {engine_options.speculative}"
        raise UsageError(
            f"{said}: steps are measured as --scheduler chunked plans them, without drafts; leave both out"
        )
    path = _target(options, engine_options)
    began, before = time.monotonic(), processor_seconds()
    with download_progress(engine_options.model, quiet=options.quiet or options.json) as progress:
        model = load_model(engine_options, progress, datetime.now)
    tell: Callable[[str], None] = (lambda words: None) if options.quiet or options.json else say
    outcome = calibrate(model, engine_options, quick=options.quick, tell=tell)
    spec, took_s = outcome.spec, time.monotonic() - began
    others = others_share(before, processor_seconds(), took_s)
    write_hardware(spec, path, f"{processor_model()}, {spec.share_units} cores, as plait calibrate measured it")
    if options.json:
        show_json(json_report(outcome, path, took_s, others))
        return 0
    for line in lines(outcome):
        show(line)
    show(f"{path} ({path.stat().st_size:,} bytes, {took_s:.0f} s)")
    if others > QUIET_SHARE:
        say(f"warning: other programs used {others:.0%} of this machine, so little of this is true")
    return 0


def _target(options: CalibrateOptions, engine_options: EngineOptions) -> Path:
    """Where the file goes. What cannot be written is said before minutes are spent."""
    path = calibration_file(engine_options.cache_dir) if options.output is None else options.output
    if options.output is not None:
        check_replaceable(options.output, FILE_BEGINNING, "--output", "hardware file")
    check_folder(path.parent)
    return path


def calibrate(model: LoadedModel, options: EngineOptions, *, quick: bool, tell: Callable[[str], None]) -> Outcome:
    """The device with its calibration, and how well that foretells steps."""
    steps_s, gap_repeats = (QUICK_STEPS_S, 1) if quick else (STEPS_S, GAP_REPEATS)
    return fit_outcome(model, options, measure(model, options, steps_s, gap_repeats, tell))


def measure(
    model: LoadedModel,
    options: EngineOptions,
    steps_s: float,
    gap_repeats: int,
    tell: Callable[[str], None],
    choose: Choice = everything,
) -> Measured:
    """Steps on the device alone for so many seconds, and of the engine so many times. `choose`: which of the
    states; who measures them in parts can do something else in between.
    """
    from plait.cli.engine_gaps import measure_gaps

    measured, alone = _measure_steps(model, options, steps_s, tell, choose)
    if not gap_repeats:
        return measured
    tell("measuring what the engine adds")
    return replace(measured, engine_steps=tuple(measure_gaps(model, options, gap_repeats, alone)))


def fit_outcome(model: LoadedModel, options: EngineOptions, measured: Measured) -> Outcome:
    """Tables fitted to what was measured."""
    from plait.cli.engine_gaps import fit_overhead, jitter, lateness

    spec = _spec(measured.rates)
    formats, roofline = _formats(model, options), _roofline(model, options, spec)
    counted = CountedAs.of(model.program.num_parameters, formats, spec.numbers)
    about = replace(_about(model, options), counted=counted)
    fitted = fit_calibration(measured.fitted, roofline, about, guard_edges(measured.units))
    bare = CalibratedModel(roofline, fitted)
    engine = fit_overhead(measured.engine_steps, bare, measured.units)
    assert fitted.solo is not None
    fitted = replace(
        fitted,
        step_overhead_s=engine.step_s,
        seq_overhead_s=engine.seq_s,
        prompt_overhead_s=engine.prompt_s,
        scatter=fit_scatter(
            measured.fitted,
            bare,
            measured.units,
            jitter(measured.engine_steps),
            lateness(measured.engine_steps),
            engine.rested_s,
        ),
        held_out=held_out(measured.fitted, measured.held_out, bare, fitted.solo),
    )
    return Outcome(replace(spec, calibration=fitted), errors_by_kind(measured.held_out, bare))


def _measure_steps(
    model: LoadedModel, options: EngineOptions, steps_s: float, tell: Callable[[str], None], choose: Choice
) -> tuple[Measured, dict[int, Sample]]:
    """And decode steps by rows, measured at the end."""
    from plait import _native
    from plait.cli.step_bench import StepBench, bench_memory
    from plait.exec.native.executor import NativeExecutor

    if any(group.is_state for group in model.program.cache_groups):
        raise PlaitError(f"{model.name} keeps states, of which no steps are measured yet; calibrate with another model")
    choice = choose_executor(options, model.program, None)
    per_token = token_bytes(model.program, choice.cache_type)
    rows = 2 * options.max_num_seqs
    free = max(0, available_memory_bytes() - model.weights.total_bytes) // 3
    least = bench_memory(per_token, options.block_size, options.max_num_seqs, options.max_num_batched_tokens)
    memory = least + min(_BENCH_TOKENS * per_token, max(0, free - least))
    bench_options = replace(options, max_num_seqs=rows, kv_cache_memory=memory, profile=None)
    ready = load_executor(bench_options, model, RealClock())
    try:
        if not isinstance(ready.executor, NativeExecutor):
            raise PlaitError(f"{model.name} runs on the reference executor only; calibrate with another model")
        bench = StepBench(ready.executor, ready.layout, model.program.vocab_size)
        limits = Limits(
            units=bench.units,
            most_rows=min(options.max_num_seqs, bench.most_rows, bench.most_tokens),
            most_tokens=bench.most_tokens,
            most_context=min(bench.most_context, ready.sizes.max_model_tokens),
            block=options.block_size,
        )
        wanted = choose(states(limits), limits.units)
        tell("measuring what this machine can do at best")
        rates = measure_rates(_native, limits.units)
        prices = _roofline(model, options, _spec(rates))
        about_s = planned_s(wanted, lambda one: _USUAL_ALPHA * prices.roof(one.shape, one.share).seconds)
        tell(f"measuring {len(wanted)} kinds of steps once: about {about_s:.0f} s")
        return _measure(bench, rates, wanted, steps_s, tell), _alone(bench, limits)
    finally:
        ready.executor.close()


def _measure(
    bench: StepBench, rates: MachineRates, wanted: Sequence[State], limit_s: float, tell: Callable[[str], None]
) -> Measured:
    """All states in turn, in another order each time, so that what others do on the machine meets all of them."""
    rng = random.Random(0)
    fitted: list[Sample] = []
    kept: list[Sample] = []
    until_s = time.monotonic() + limit_s
    for number in range(MOST_ROUNDS):
        if number:
            tell(f"measuring them again, round {number + 1}")
        visits = dict.fromkeys(wanted, 0)
        queue = rng.sample(list(wanted), len(wanted))
        while queue:
            state, began_s = queue.pop(), time.monotonic()
            # The first round is whole whatever it takes, or there would be states without a sample.
            if began_s > until_s and (number or visits[state]):
                continue
            (kept if state.is_held_out else fitted).extend(_samples(bench, state))
            visits[state] += 1
            if visits[state] < _VISITS and time.monotonic() - began_s <= _SHORT_S:
                queue.insert(rng.randrange(len(queue) + 1), state)
        if time.monotonic() > until_s:
            break
    return Measured(bench.units, rates, tuple(fitted), tuple(kept))


def _alone(bench: StepBench, limits: Limits) -> dict[int, Sample]:
    """What an engine's steps are compared with, all sizes in turn, so that a moment meets all of them."""
    from plait.cli.engine_gaps import ALONE_CONTEXT, STREAMS

    context = min(ALONE_CONTEXT, limits.most_context - limits.most_tokens) // limits.block * limits.block
    shapes = {rows: decode_shape(rows, context) for rows in STREAMS if rows <= limits.most_rows}
    found: dict[int, list[float]] = {rows: [] for rows in shapes}
    for _ in range(_ALONE_VISITS):
        for rows, shape in shapes.items():
            found[rows] += [sample.seconds for sample in bench.alone(shape, limits.units, _REPEATS)]
    return {rows: Sample(shapes[rows], limits.units, median(seconds)) for rows, seconds in found.items()}


def planned_s(wanted: Sequence[State], step_s: Callable[[State], float]) -> float:
    """What one visit of each state takes, without which there is no calibration; `step_s` foretells a step. More visits
    are made as long as there is time.
    """
    return fsum(_visit_s(state, step_s) for state in wanted)


def _visit_s(state: State, step_s: Callable[[State], float]) -> float:
    from plait.cli.step_bench import steps_alone

    took_s = step_s(state)
    if state.beside is None:
        return took_s * steps_alone(state.shape, took_s, _REPEATS)
    other_s = step_s(replace(state, shape=state.beside, beside=state.shape))
    # Those that run when it is enough go on to their end, and one more each.
    longest_s = max(took_s, other_s)
    return min(_BESIDE_S, _BESIDE_REPEATS * longest_s) + 2 * longest_s


def _samples(bench: StepBench, state: State) -> list[Sample]:
    if state.beside is None:
        return bench.alone(state.shape, state.share, _REPEATS)
    return bench.side_by_side(state.shape, state.beside, state.share, _BESIDE_REPEATS, _BESIDE_S)


def _formats(model: LoadedModel, options: EngineOptions) -> Formats:
    from plait.model_formats import formats_of

    return formats_of(model, options, choose_executor(options, model.program, None).cache_type)


def _roofline(model: LoadedModel, options: EngineOptions, spec: HardwareSpec) -> RooflineModel:
    return RooflineModel(model.program, _formats(model, options), spec)


def _about(model: LoadedModel, options: EngineOptions) -> Calibration:
    rounded = "" if options.quantize == "none" else f", --quantize {options.quantize}"
    return Calibration(
        model=f"{model.name}{rounded}",
        calibrated_on=f"{processor_model()}, {datetime.now().date().isoformat()}",
        evidence="real-cpu",
        num_steps=1,
        alpha=constant_alpha(),
        step_overhead_s=0.0,
        seq_overhead_s=0.0,
    )


def _spec(rates: MachineRates) -> HardwareSpec:
    """Overheads are in the calibration; the device itself has none that is known."""
    memory = available_memory_bytes()
    by_format = {
        "f32": rates.f32_per_s,
        "int8": rates.int8_per_s,
        "int4": rates.int8_per_s,
        ATTENTION: rates.f32_per_s,
    }
    spec = replace(rates.hardware("this-machine", memory, is_int8=False), unit="core", rates=by_format)
    when = datetime.now().date().isoformat()
    measured = partial(Figure, basis=Basis.MEASURED)
    loop, read = f"register loop, {when}", f"read of memory beyond the caches, {when}"
    return replace(
        spec,
        figures={
            "compute.flops_per_s.f32": measured(rates.f32_per_s, source=loop),
            "compute.flops_per_s.int8": measured(rates.int8_per_s, source=loop),
            "compute.flops_per_s.int4": measured(rates.int8_per_s, source="4 by 8 bits, multiplied as 8 by 8"),
            f"compute.flops_per_s.{ATTENTION}": measured(rates.f32_per_s, source="in f32"),
            "memory.bytes": measured(memory, source="free when it was measured"),
            "memory.bytes_per_s": measured(rates.read_bytes_per_s, source=read),
            "memory.knee_units": measured(spec.memory_knee_units, source=f"{read}, all threads by one"),
            "overhead.step_s": Figure(0.0, Basis.ASSUMED, "in the calibration"),
            "overhead.seq_s": Figure(0.0, Basis.ASSUMED, "in the calibration"),
        },
    )
