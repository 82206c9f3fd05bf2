"""Tune: `plait tune`, better sizes of units for this machine and a model, where there are any.

Owns which settings are tried, for how long, the report and the file. Trials are the runtime's own steps (`exec.native.
trials`), the rule of acceptance is `exec.native.search`'s.
Invariant: an entry is written only if it beat the built-in estimate beyond noise; no entry can change an answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from plait.build import LoadedModel, choose_executor, load_model, native_config
from plait.cli.streams import say, show
from plait.cli.terminal import download_progress
from plait.config.engine_options import EngineOptions
from plait.config.machine import num_cores, processor_model, processor_seconds
from plait.config.option import OptionSources
from plait.config.tune_options import TuneOptions
from plait.core.errors import PlaitError, UsageError
from plait.core.step import STEP_PROGRAM
from plait.exec.native import presence, search
from plait.exec.native.blocking import Blocking, GemmBlocks, UnitSizes, row_bucket
from plait.exec.native.checks import check_program
from plait.exec.native.search import Choice, Effort, best_of, compare
from plait.exec.native.tape import OpKind, OpSpec, RowSpace
from plait.exec.native.tune_table import TuneTable, check_folder, check_output, write_table
from plait.model.cache_layout import CacheLayout, group_token_bytes, plan_layout

if TYPE_CHECKING:
    from plait.exec.native.trials import Mix, ProductTrial, StepTrials

LIMIT_S = 170.0
"""Of looking; what is not measured by then keeps its estimate."""
PRODUCTS_SHARE = 0.6
CELL_S = 15.0
"""Of looking for one product and number of rows."""
MAX_OUTPUT_ROWS = 64
"""More rows than this the head never sees at once."""
QUIET_SHARE = 0.05
"""What other programs may use before a warning says so."""
TILE_ROWS = 48
"""Fewer rows are one block whatever happens."""
STEP_PAIRS = 7

UNITS_PER_WORKER = (1, 2, 3, 4, 6, 8, 12, 16)
MOST_ROWS = (48, 96, 192)
SIZES: dict[str, tuple[float, ...]] = {
    "smallest_us": (4.0, 16.0),
    "largest_us": (40.0, 160.0),
    "per_worker": (2.0, 8.0),
    "largest_attend_us": (100.0, 600.0),
    "least_attend_rows": (4, 16),
    "stack_tasks_per_worker": (4, 16),
}
"""What else is tried; sizes that are in the middle are built in."""


@dataclass(slots=True)
class Found:
    """What was accepted, and lines of what was tried."""

    sizes: UnitSizes = field(default_factory=UnitSizes)
    products: dict[str, dict[int, GemmBlocks]] = field(default_factory=dict)
    num_tried: int = 0
    num_left: int = 0
    """Not tried, because time was up."""

    @property
    def blocking(self) -> Blocking:
        return Blocking(self.sizes, self.products)


def run_tune(sources: OptionSources) -> int:
    options, engine_options = sources.read(TuneOptions), sources.read(EngineOptions)
    if (reason := presence.missing()) is not None:
        raise PlaitError(f"plait tune needs the native runtime: {reason}; install Plait where a C++ compiler is")
    _check_options(options, engine_options)
    began, before = time.monotonic(), processor_seconds()
    with download_progress(engine_options.model, quiet=options.quiet) as progress:
        model = load_model(engine_options, progress, datetime.now)
    check_program(model.program)
    _plan_memory(engine_options, model)
    found = Found()
    _tune_products(options, engine_options, model, found, began + LIMIT_S * PRODUCTS_SHARE)
    table = _tune_steps(options, engine_options, model, found, began)
    path = options.output or table.key.path(engine_options.cache_dir)
    write_table(table, path)
    took_s = time.monotonic() - began
    left = f"; {found.num_left} not tried for want of time" if found.num_left else ""
    entries = f"{table.num_entries} of {found.num_tried} tried are entries"
    show(f"{entries} of {path} ({path.stat().st_size:,} bytes, {took_s:.0f} s{left})")
    if (others := others_share(before, processor_seconds(), took_s)) > QUIET_SHARE:
        say(f"warning: other programs used {others:.0%} of this machine, so little of this is true")
    return 0


def _check_options(options: TuneOptions, engine_options: EngineOptions) -> None:
    """What would be found out minutes later, or never said."""
    if engine_options.executor == "reference":
        raise UsageError("--executor is reference but only the native executor cuts operations; leave it out")
    if engine_options.profile is not None:
        raise UsageError(
            f"--profile is {engine_options.profile} but plait tune runs no engine to profile; leave it out"
        )
    if options.output is not None:
        check_output(options.output)
    check_folder(engine_options.cache_dir / "tune" if options.output is None else options.output.parent)


def others_share(before: tuple[float, float] | None, after: tuple[float, float] | None, took_s: float) -> float:
    """Of all processors, what other programs used between two readings."""
    if before is None or after is None:
        return 0.0
    return max(0.0, (after[0] - before[0]) - (after[1] - before[1])) / (took_s * num_cores())


def candidates(op: OpSpec, num_panels: int, num_rows: int, workers: int) -> list[GemmBlocks]:
    """Blocks that are worth a try for `num_rows` rows: a few units for each worker, of a few shapes."""
    least = 1 if op.kind is OpKind.GEMM else 2
    per_block = {max(least, -(-num_panels // (workers * count))) for count in UNITS_PER_WORKER}
    # Kernels take panels by twos where registers allow it.
    panels = sorted({one if one == 1 else one + one % 2 for one in per_block})
    rows = [most for most in MOST_ROWS if most < num_rows] if num_rows > TILE_ROWS else []
    return [GemmBlocks(most, count) for most in (*rows, num_rows) for count in panels]


def rows_to_try(op: OpSpec, max_step_tokens: int, *, quick: bool) -> Iterator[int]:
    """One number of rows for each bucket: its largest, or a little less, so that blocks must be cut evenly."""
    most = min(MAX_OUTPUT_ROWS, max_step_tokens) if op.space is RowSpace.OUTPUTS else max_step_tokens
    for bucket in range(row_bucket(most) + 1):
        if not quick or bucket % 3 == 0:
            rows = 1 << bucket
            yield min(most, rows if rows < 8 else rows - rows // 8)


def _tune_products(
    options: TuneOptions, engine_options: EngineOptions, model: LoadedModel, found: Found, until_s: float
) -> None:
    from plait.exec.native.executor import usable_targets
    from plait.exec.native.lowering import lower
    from plait.exec.native.packing import schemes_of
    from plait.exec.native.trials import Model, ProductTrial

    config, workers = native_config(engine_options, model.config.max_positions)
    schemes = schemes_of(model.program, model.weights, config.dtype)
    target = config.target or usable_targets()[-1]
    tape = lower(model.program, schemes)
    trials = Model(tape, model.weights, schemes, workers.cores, target, config.max_step_tokens)
    effort = search.QUICK if options.quick else search.FULL
    show(f"{model.name} on {processor_model()}, {len(workers.cores)} workers, {target}")
    show(f"{'product':<42}{'rows':>6}{'now us':>9}{'best us':>9}  times as fast (quartiles)")
    for name, ops in trials.products().items():
        if not options.quiet:
            say(f"measuring {name}")
        trial = ProductTrial(trials, ops)
        try:
            for num_rows in rows_to_try(ops[0], config.max_step_tokens, quick=options.quick):
                blocks = candidates(ops[0], trial.num_panels, num_rows, len(workers.cores))
                left_s = until_s - time.monotonic()
                # Of a large model one product of many rows takes a second.
                if left_s <= 0 or trial.seconds(num_rows, None) * effort.num_samples(len(blocks)) > min(CELL_S, left_s):
                    found.num_left += 1
                    continue
                choice = _best_blocks(trial, num_rows, blocks, effort)
                _note_product(found, name, num_rows, choice)
        finally:
            trial.close()


def _best_blocks(
    trial: ProductTrial, num_rows: int, blocks: Sequence[GemmBlocks], effort: Effort
) -> Choice[GemmBlocks | None] | None:
    def seconds(one: GemmBlocks | None) -> float:
        return trial.seconds(num_rows, one)

    return best_of(None, list[GemmBlocks | None](blocks), seconds, effort)


def _note_product(found: Found, name: str, num_rows: int, choice: Choice[GemmBlocks | None] | None) -> None:
    found.num_tried += 1
    if choice is None or choice.setting is None:
        return
    kept = ""
    if choice.gain.is_real:
        found.products.setdefault(name, {})[row_bucket(num_rows)] = choice.setting
        kept = f"  {choice.setting.most_rows} rows, {choice.setting.panels_per_block} panels"
    show(
        f"{name:<42}{num_rows:>6}{choice.present_s * 1e6:>9.0f}{choice.setting_s * 1e6:>9.0f}  {choice.gain}"
        f"{kept or '  not beyond noise'}"
    )


def _tune_steps(
    options: TuneOptions, engine_options: EngineOptions, model: LoadedModel, found: Found, began_s: float
) -> TuneTable:
    """Sizes of units, on steps of the whole model, and what all entries together are worth there."""
    from plait.exec.native.executor import NativeExecutor
    from plait.exec.native.trials import StepTrials
    from plait.exec.native.tuned import tune_key

    config, _ = native_config(engine_options, model.config.max_positions)
    mixes, layout = _plan_memory(engine_options, model)
    executor = NativeExecutor(config)
    executor.load({STEP_PROGRAM: model.program}, model.weights, layout)
    try:
        trials = StepTrials(executor, layout, mixes)
        if not options.quick:
            _tune_sizes(options, trials, found, began_s + LIMIT_S)
        if found.blocking != Blocking():
            _compare_steps(trials, mixes, found)
        show("")
        return TuneTable(tune_key(executor, processor_model()), found.blocking)
    finally:
        executor.close()


def _plan_memory(engine_options: EngineOptions, model: LoadedModel) -> tuple[Sequence[Mix], CacheLayout]:
    """Steps to measure and the cache that they need. `UsageError`: blocks of that size hold no such numbers."""
    from plait.exec.native.trials import memory_for, mixes_for

    config, _ = native_config(engine_options, model.config.max_positions)
    mixes = mixes_for(model.config.max_positions, config.max_step_tokens, config.max_rows)
    cache_type = choose_executor(engine_options, model.program, None).cache_type
    groups, block_size = model.program.cache_groups, engine_options.block_size
    per_token = max(group_token_bytes(group, cache_type) for group in groups)
    layout = plan_layout(
        model.program,
        memory_bytes=memory_for(per_token, block_size, len(groups), mixes),
        tokens_per_block=block_size,
        cache_type=cache_type,
    )
    return mixes, layout


def _compare_steps(trials: StepTrials, mixes: Sequence[Mix], found: Found) -> None:
    """With and without all entries. Nothing is left of them if that makes a step slower."""
    show("")
    show(f"{'whole steps':<48}{'now us':>9}{'tuned us':>9}  times as fast (quartiles)")
    slower = False
    for mix in mixes:
        choice = compare(Blocking(), found.blocking, partial(trials.seconds_of, mix), STEP_PAIRS)
        show(f"{mix.name:<48}{choice.present_s * 1e6:>9.0f}{choice.setting_s * 1e6:>9.0f}  {choice.gain}")
        slower |= choice.gain.is_loss
    if slower:
        show("whole steps became slower, so there will be no entries")
        found.sizes, found.products = UnitSizes(), {}


def _tune_sizes(options: TuneOptions, trials: StepTrials, found: Found, until_s: float) -> None:
    effort = replace(search.FULL, num_rough=2, num_finalists=1, num_pairs=STEP_PAIRS)
    show("")
    show(f"{'size of units':<42}{'now':>6}{'best':>9}  times as fast (quartiles)")
    for name, values in SIZES.items():
        if time.monotonic() + trials.sample_s * effort.num_samples(len(values)) >= until_s:
            found.num_left += 1
            continue
        if not options.quiet:
            say(f"measuring {name}")
        present = found.blocking
        others = [replace(present, sizes=_with(present.sizes, name, value)) for value in values]
        choice = best_of(present, others, trials.seconds, effort)
        found.num_tried += 1
        if choice is None:
            continue
        before, after = getattr(present.sizes, name), getattr(choice.setting.sizes, name)
        if choice.gain.is_real:
            found.sizes = choice.setting.sizes
        kept = "" if choice.gain.is_real else "  not beyond noise"
        show(f"{name:<42}{before:>6g}{after:>9g}  {choice.gain}{kept}")


def _with(sizes: UnitSizes, name: str, value: float) -> UnitSizes:
    match name:
        case "smallest_us":
            return replace(sizes, smallest_us=value)
        case "largest_us":
            return replace(sizes, largest_us=value)
        case "per_worker":
            return replace(sizes, per_worker=value)
        case "largest_attend_us":
            return replace(sizes, largest_attend_us=value)
        case "least_attend_rows":
            return replace(sizes, least_attend_rows=int(value))
        case _:
            return replace(sizes, stack_tasks_per_worker=int(value))
