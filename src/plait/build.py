"""Build: the composition root of serving; picks executor, text and clock (`plait.assembly` picks the rest).

Owns the order in which a loaded model becomes a running engine, and which executor runs it where the user left that
open. Everything it makes is returned; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plait.api.model_text import ModelText
from plait.assembly import Drafting, DraftModel, Policy, assemble, check_priced
from plait.config.ablations import memory_ablations, scheduler_ablations
from plait.config.engine_options import EngineOptions
from plait.config.machine import (
    available_memory_bytes,
    one_of_each_core,
    processor_model,
    processor_quota,
    resident_bytes,
    usable_processors,
)
from plait.config.places import calibration_file
from plait.config.resolve import (
    ModelFacts,
    Processors,
    Sizes,
    Workers,
    resolve_instruction_set,
    resolve_sizes,
    resolve_workers,
)
from plait.config.schedulers import INTERLEAVED
from plait.core.client import ModelInfo
from plait.core.clock import Clock, RealClock
from plait.core.errors import ModelError, PlaitError, UsageError
from plait.core.events import Event, EventSink
from plait.core.executor import ExecutorInfo
from plait.core.profiling import WorkLog
from plait.core.request import ServiceClass, Slo
from plait.core.step import STEP_PROGRAM
from plait.cost.calibrated import cost_model
from plait.cost.calibration import margin_of
from plait.cost.hardware import HardwareSpec, read_hardware
from plait.draft.depth import PricedDepth
from plait.draft.draft_model import ModelDrafts
from plait.draft.ngram import NgramDrafts
from plait.draft.window import Window
from plait.engine.client import AsyncClient
from plait.engine.engine import EngineConfig, Ports
from plait.engine.inbox import Inbox
from plait.engine.thread import EngineThread
from plait.exec.loading import LoadableExecutor, LogitsObserver
from plait.exec.native import presence
from plait.exec.native.checks import check_program as check_native
from plait.exec.paired import PairedExecutor
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.kv.layouts.serving import Cutting, cut, cut_pair
from plait.kv.report import CacheReport
from plait.kv.rules import ALL_RULES, MemoryRules, rules_without
from plait.loading import LoadedModel as LoadedModel  # callers take them from here
from plait.loading import check_draft_options
from plait.loading import load_model as load_model
from plait.metrics.chrome_trace import check_trace
from plait.metrics.histogram import Histogram
from plait.metrics.profile import Profile
from plait.metrics.profile_figures import Figures
from plait.model.cache_layout import CacheLayout, token_bytes
from plait.model.cache_type import CacheType
from plait.model.cost import Formats
from plait.model.notes import model_notes
from plait.model.pooling import has_pool, with_pool
from plait.model.program import Program
from plait.sched.chunked import ChunkedScheduler
from plait.sched.multiplex.presets import CHUNKED, Preset, preset_of, shares_of
from plait.sched.multiplex.scheduler import MultiplexScheduler
from plait.start_texts import MIB, block_text, memory_texts, workers_text
from plait.text.grammar import Grammars
from plait.text.stream import text_stream_factory

if TYPE_CHECKING:
    from plait.exec.native.executor import NativeConfig

LANES = 3
"""Of the native executor: decode, prompts, and prompts that overtake others (docs/adr/0016)."""
UNIT_S = 0.25e-3
"""The longest units of work of the native runtime, behind which workers change lanes (docs/concepts/runtime.md)."""
Delays = Callable[[], Histogram]
NO_SLOS: Mapping[ServiceClass, Slo] = {}
NO_NATIVE = (
    "{reason}; reinstall Plait where a C++ compiler is (GCC 11 or Clang 14 and newer), or take --executor reference"
)


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """Which executor runs a model, and in which numbers it keeps keys and values."""

    is_native: bool
    cache_type: CacheType
    notes: tuple[str, ...] = ()
    """Why it is not what one would expect, and the way out."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A running engine in this process. `close` ends its threads."""

    model: LoadedModel
    text: ModelText
    client: AsyncClient
    thread: EngineThread
    executor: ExecutorInfo
    sizes: Sizes
    clock: Clock
    notes: tuple[str, ...]
    """One line each about the executor, for the start-up report."""
    report: Callable[[str], None]
    profile: Profile | None = None
    cache_fraction: Callable[[], float] = lambda: 0.0
    """How much of the KV memory eviction could not free now."""
    cache_report: Callable[[], CacheReport] | None = None
    """What the KV memory holds, by group; off by the step that is running."""
    geometry: str | None = None
    """How the KV memory is cut, in words, where there was something to choose."""
    is_drafting: bool = False
    """Whether somebody guesses tokens."""
    draft: Callable[[bool], None] | None = None
    """Switches drafts off and on again, for measurements, while nobody runs; None: there are none, or no switch."""
    change_delays: Delays | None = None
    """How long workers took to notice that they were to work for another lane; None: nobody counts."""
    own_delays: Delays | None = None
    """For how long of that they ran themselves."""

    def close(self) -> None:
        """End everything; what was profiled is written and reported. Again: nothing more happens."""
        self.thread.close()
        self.profile_figures()

    def profile_figures(self) -> Figures | None:
        """What the profile came to, if there is one. Closes the engine, because nothing may be measured any more."""
        if self.profile is None:
            return None
        self.thread.close()
        return self.profile.finish(self.report)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An executor with its model. `work`: what its workers do, if it was asked to record that and can."""

    executor: LoadableExecutor
    notes: tuple[str, ...]
    work: WorkLog | None = None
    delays: Delays | None = None
    own_delays: Delays | None = None
    draft: DraftModel | None = None


@dataclass(frozen=True, slots=True)
class ReadyExecutor:
    """An executor with a model and memory, and what was chosen for it."""

    executor: LoadableExecutor
    layout: CacheLayout
    sizes: Sizes
    notes: tuple[str, ...]
    """One line each, for the start-up report."""
    rules: MemoryRules = ALL_RULES
    geometry: str | None = None
    """How memory is cut, in words, where there was something to choose."""
    work: WorkLog | None = None
    delays: Delays | None = None
    own_delays: Delays | None = None
    draft: DraftModel | None = None
    """What guesses, where the executor has its program, too."""


def start_engine(
    options: EngineOptions,
    model: LoadedModel,
    events: EventSink,
    report_fault: Callable[[str], None],
    max_unread: int | None = None,
    slos: Mapping[ServiceClass, Slo] = NO_SLOS,
) -> LocalEngine:
    """Put a loaded model behind a client and start its threads. `report_fault` also gets the words of a profile,
    `max_unread` is the client's; `slos`: targets of requests that bring none.
    """
    if options.profile is not None:
        check_trace(options.profile)
    clock, policy = RealClock(), policy_of(options, model, report_fault)
    drafting, drafting_notes = drafting_of(options, model)
    ready = load_executor(options, model, clock)
    executor, sizes, info = ready.executor, ready.sizes, ready.executor.info
    profile = None if options.profile is None else Profile(options.profile, clock.now, info, ready.work)
    vocab_size = model.program.vocab_size
    inbox = Inbox()
    client = AsyncClient(_model_info(model, sizes, info), inbox, max_unread)
    parts = assemble(
        EngineConfig(vocab_size, sizes.max_model_tokens, options.seed, slos=slos, plans_first=True),
        ready.layout,
        executor,
        clock,
        _ports(inbox, client, events, model, profile),
        eos_token_ids=model.tokenizer.eos_ids,
        enable_prefix=options.enable_prefix_caching,
        rules=ready.rules,
        policy=policy,
        drafting=None if drafting is None else replace(drafting, model=ready.draft),
    )
    thread = EngineThread(parts.engine, executor, inbox, client, report_fault)
    thread.start()
    return LocalEngine(
        model=model,
        text=ModelText(model.tokenizer, model.template, Grammars(model.tokenizer)),
        client=client,
        thread=thread,
        executor=info,
        sizes=sizes,
        clock=clock,
        notes=(*ready.notes, *drafting_notes, *fused_only(policy.preset, info.share_units, is_native=policy.has_lanes)),
        report=report_fault,
        profile=profile,
        cache_fraction=lambda: parts.kv.usage().fraction,
        cache_report=parts.kv.explain,
        geometry=ready.geometry,
        is_drafting=drafting is not None,
        draft=_switch(parts.scheduler, drafting),
        change_delays=ready.delays,
        own_delays=ready.own_delays,
    )


def _switch(
    scheduler: ChunkedScheduler | MultiplexScheduler, drafting: Drafting | None
) -> Callable[[bool], None] | None:
    return scheduler.draft if drafting is not None and isinstance(scheduler, ChunkedScheduler) else None


def _model_info(model: LoadedModel, sizes: Sizes, info: ExecutorInfo) -> ModelInfo:
    return ModelInfo(
        model.name,
        model.program.vocab_size,
        sizes.max_model_tokens,
        info.fingerprint,
        info.bit_exact,
        model.weights.identity,
        model.config.hidden if has_pool(with_pool(model.program)) else 0,
    )


def policy_of(options: EngineOptions, model: LoadedModel, warn: Callable[[str], None]) -> Policy:
    """How prompts and decode share this machine. On the reference executor, which computes with one core, nothing is
    gained by running steps side by side: there every one is fused.

    `warn` is told where prices come from steps of another model or format.
    """
    choice, (preset, hardware) = options.scheduler, check_scheduler(options)
    if hardware is None:
        return _chunked(options, model)
    formats = counted_formats(options, model)
    calibration = hardware.calibration
    if calibration is not None and calibration.counted is not None:
        differs = calibration.counted.differs(formats, model.program.num_parameters, calibration.model)
        if differs is not None:
            warn(f"warning: --scheduler {choice}: {differs}")
    is_native = _executor_of(options, model).is_native
    return Policy(
        preset,
        cost_model(model.program, formats, hardware),
        hardware.granule,
        num_spans=len(model.program.spans),
        stop_s=UNIT_S if is_native else None,
        has_lanes=is_native,
        runs_ahead=is_native,
        margin_s=margin_of(calibration),
        priced_units=hardware.share_units,
    )


def check_scheduler(options: EngineOptions) -> tuple[Preset, HardwareSpec | None]:
    """The policy that was asked for, and what its prices are of; None: it needs none. `UsageError` where it cannot be
    had on this machine, or no draft model beside it: before a model is fetched or loaded, so that nobody waits for it.
    """
    check_draft_options(options)
    choice, ablations = options.scheduler, scheduler_ablations(options.ablate)
    if choice.name == INTERLEAVED:
        raise UsageError("--scheduler interleaved is there in plait sim alone: no executor here runs steps in halves")
    preset = preset_of(choice.name, ablations, chunk_s=choice.chunk_s, units=choice.units)
    if preset == CHUNKED:
        return preset, None
    path = calibration_file(options.cache_dir)
    if not path.is_file():
        raise UsageError(
            f"--scheduler {choice} prices steps, but {path} is not there: run plait calibrate on this machine, or take "
            "--scheduler chunked"
        )
    hardware = read_hardware(path, str(path))
    is_native = options.executor != "reference" and presence.missing() is None
    workers = len(_workers(options).cores) if is_native else 1
    check_priced(hardware.share_units, workers)
    if choice.units is not None:
        shares_of(preset, workers if workers > 1 else hardware.share_units, hardware.granule)
    return preset, hardware


def fused_only(preset: Preset, num_workers: int, *, is_native: bool) -> tuple[str, ...]:
    """A line for the start-up report where a policy cannot run steps side by side here."""
    if preset.is_fused or (is_native and num_workers > 1):
        return ()
    why = "one worker computes" if is_native else "the reference executor computes with one"
    return (f"scheduler {preset.name}: every step is fused, because {why}; steps side by side take two workers",)


def _chunked(options: EngineOptions, model: LoadedModel) -> Policy:
    """With prices where this machine was calibrated with this model: they hold targets beside offline work. Nobody
    asked for them, so a file that does not fit is none.
    """
    path = calibration_file(options.cache_dir)
    try:
        hardware = read_hardware(path, str(path)) if path.is_file() else None
    except (UsageError, OSError):
        return Policy()
    calibration = None if hardware is None else hardware.calibration
    if hardware is None or calibration is None or calibration.counted is None:
        return Policy()
    formats = counted_formats(options, model)
    if calibration.counted.differs(formats, model.program.num_parameters, calibration.model) is not None:
        return Policy()
    return Policy(cost=cost_model(model.program, formats, hardware), priced_units=hardware.share_units)


def _executor_of(options: EngineOptions, model: LoadedModel) -> ExecutorChoice:
    # A runtime that cannot be used is no trouble for whoever does not want it.
    missing = None if options.executor == "reference" else presence.missing()
    return choose_executor(options, model.program, missing)


def drafting_of(options: EngineOptions, model: LoadedModel) -> tuple[Drafting | None, tuple[str, ...]]:
    """Who guesses tokens, if anybody does, and a note where the model does not let him."""
    if options.speculative == "off":
        return None, ()
    if options.speculative == "ngram":
        is_native = _executor_of(options, model).is_native
        return Drafting(NgramDrafts(_native_windows()) if is_native else NgramDrafts(), PricedDepth()), ()
    if model.draft is None:
        raise UsageError("--speculative model needs a model that drafts: name it with --draft-model")
    choice = _executor_of(options, model)
    if not choice.is_native:
        raise UsageError(
            f"--speculative model needs the native executor, but {model.name} would run on the reference executor "
            f"({'; '.join(choice.notes)}); take --speculative ngram"
        )
    try:
        check_native(model.draft.program)
    except ModelError as error:
        raise ModelError(f"--draft-model {options.draft_model} does not run on the native executor: {error}") from None
    return Drafting(ModelDrafts(), PricedDepth()), ()


def _native_windows() -> Callable[[int, int], Window]:
    from plait.exec.native.ngrams import native_window

    return native_window


def counted_formats(options: EngineOptions, model: LoadedModel) -> Formats:
    """As `plait calibrate` counts them; on the reference executor as the file has them, beside a cache in float32."""
    choice = _executor_of(options, model)
    if choice.is_native:
        # Imports what may not be there; whoever comes here knows that it is.
        from plait.model_formats import formats_of

        return formats_of(model, options, choice.cache_type)
    weights = {name: model.weights[name].num_bytes / spec.num_elements for name, spec in model.program.weights.items()}
    mean = sum(weights[name] * spec.num_elements for name, spec in model.program.weights.items())
    return Formats(weights, default_weight_bytes=mean / model.program.num_parameters)


def load_executor(
    options: EngineOptions, model: LoadedModel, clock: Clock, observe_logits: LogitsObserver | None = None
) -> ReadyExecutor:
    """The executor that a model is served with, before anything is submitted to it. Whoever calls this closes it."""
    choice = _executor_of(options, model)
    if options.speculative != "model":  # a model that was loaded once may be served with and without
        model = replace(model, draft=None)
    cutting = cutting_of(options, model, choice.cache_type)
    model = replace(model, program=cutting.program)
    sizes = resolve_sizes(options, model_facts(model, cutting), available_memory_bytes())
    layout = cutting.plan(sizes.memory_bytes)
    try:
        if choice.is_native:
            loaded = _native_executor(options, model, layout, sizes.max_model_tokens, observe_logits)
            if model.draft is not None and cutting.draft is not None:
                draft = replace(model.draft, program=cutting.draft)
                loaded = _with_draft(options, loaded, draft, cutting.plan_pair(sizes.memory_bytes)[1], sizes)
        else:
            loaded = _reference_executor(options, model, layout, clock, observe_logits)
    except (MemoryError, OSError) as error:
        raise PlaitError(
            f"the system does not give what {model.name} with {layout.pool_bytes / MIB:,.0f} MiB of KV cache and "
            f"{options.max_num_batched_tokens:,} tokens a step takes ({error}); ask for less with --kv-cache-memory or "
            "--max-num-batched-tokens, or raise the limits of this process"
        ) from error
    words = cutting.described()
    notes = (*choice.notes, *loaded.notes, *(() if words is None else (words,)))
    rules = cutting.rules(rules_without(memory_ablations(options.ablate)))
    return ReadyExecutor(
        loaded.executor,
        layout,
        sizes,
        (*notes, *model_notes(model.config, model.program)),
        rules,
        words,
        loaded.work,
        loaded.delays,
        loaded.own_delays,
        loaded.draft,
    )


def cutting_of(options: EngineOptions, model: LoadedModel, cache_type: CacheType) -> Cutting:
    """How a model's cache memory is cut, that of its draft model, too."""
    if model.draft is None:
        return cut(model.program, options.kv_layout, options.block_size, cache_type)
    return cut_pair(model.program, model.draft.program, options.kv_layout, options.block_size, cache_type)


def model_facts(model: LoadedModel, cutting: Cutting) -> ModelFacts:
    """What the sizes of a model's memory depend on."""
    per_token = token_bytes(cutting.program, cutting.cache_type)
    return ModelFacts(model.config.max_positions, per_token, cutting.sequence_bytes())


def _ports(inbox: Inbox, client: AsyncClient, events: EventSink, model: LoadedModel, profile: Profile | None) -> Ports:
    streams = text_stream_factory(model.tokenizer)
    if profile is None:
        return Ports(inbox, client, events, streams)
    recorder = profile.recorder

    def tell_both(event: Event) -> None:
        recorder.event(event)
        events(event)

    return Ports(inbox, client, tell_both, streams, recorder.phase)


def choose_executor(options: EngineOptions, program: Program, missing: str | None) -> ExecutorChoice:
    """`missing`: why the native runtime cannot be used here, or None. `UsageError` or `ModelError` where the user asked
    for what there is not.
    """
    wanted = options.executor
    if wanted == "native" and missing is not None:
        raise UsageError(f"--executor native: {NO_NATIVE.format(reason=missing)}")
    if wanted == "reference":
        return _reference_choice(options)
    if missing is not None:
        return _reference_choice(options, f"no native runtime, so it is slow: {missing}; reinstall with a C++ compiler")
    try:
        check_native(program)
    except ModelError as error:
        if wanted == "native":
            raise
        return _reference_choice(options, f"not the native runtime: {error}")
    return ExecutorChoice(
        True, CacheType.F16 if options.kv_cache_dtype == "auto" else CacheType(options.kv_cache_dtype)
    )


def _reference_choice(options: EngineOptions, *notes: str) -> ExecutorChoice:
    if options.kv_cache_dtype not in ("auto", "f32"):
        raise UsageError(
            f"--kv-cache-dtype is {options.kv_cache_dtype} but the reference executor keeps f32 only; leave it out"
        )
    if options.threads is not None:
        raise UsageError(f"--threads is {options.threads} but the reference executor has one; leave it out")
    if options.instruction_set != "auto":
        raise UsageError(
            f"--instruction-set is {options.instruction_set} but the reference executor is NumPy's; leave it out"
        )
    if options.tune_table not in ("auto", "none"):
        raise UsageError(f"--tune-table is {options.tune_table} but the reference executor cuts nothing; leave it out")
    return ExecutorChoice(False, CacheType.F32, notes)


def _reference_executor(
    options: EngineOptions,
    model: LoadedModel,
    layout: CacheLayout,
    clock: Clock,
    observe_logits: LogitsObserver | None,
) -> _Loaded:
    config = ReferenceConfig(
        max_step_tokens=options.max_num_batched_tokens, max_rows=options.max_num_seqs, observe_logits=observe_logits
    )
    executor = ReferenceExecutor(config, clock.now)
    executor.load({STEP_PROGRAM: with_pool(model.program)}, model.weights, layout)
    return _Loaded(executor, ())


def _native_executor(
    options: EngineOptions,
    model: LoadedModel,
    layout: CacheLayout,
    max_positions: int,
    observe_logits: LogitsObserver | None,
) -> _Loaded:
    # Imports what may not be there; whoever comes here knows that it is.
    from plait.exec.native.executor import NativeExecutor
    from plait.exec.native.tuned import use_table

    config, workers = native_config(options, max_positions, observe_logits)
    executor = NativeExecutor(config)
    executor.load({STEP_PROGRAM: with_pool(model.program)}, model.weights, layout)
    units = use_table(executor, options.tune_table, options.cache_dir, processor_model())
    held, num_used = executor.footprint, _lanes_used(options, len(workers.cores))
    notes = (
        f"{executor.target} instructions, {workers_text(workers)}",
        units,
        *executor.kept,
        *memory_texts(resident_bytes(), held.weights, held.arena + (num_used - 1) * held.lane, layout),
    )
    return _Loaded(
        executor,
        notes,
        executor.work_log,
        lambda: Histogram.of(*executor.change_delays()),
        lambda: Histogram.of(*executor.own_change_delays()),
    )


def _with_draft(
    options: EngineOptions, loaded: _Loaded, draft: LoadedModel, layout: CacheLayout, sizes: Sizes
) -> _Loaded:
    """A second runtime, which has the first one's cache memory."""
    from plait.exec.native.executor import NativeExecutor
    from plait.exec.native.packing import WeightDtype

    target = loaded.executor
    assert isinstance(target, NativeExecutor)
    config, _ = native_config(options, sizes.max_model_tokens)
    # Its numbers are in no answer, so there is nothing that --dtype f32 could make more exact.
    config = replace(config, dtype=WeightDtype.AUTO, num_lanes=1, records_work=False)
    executor = NativeExecutor(config, pool_of=target)
    executor.load({STEP_PROGRAM: draft.program}, draft.weights, layout)
    weights = executor.footprint.weights
    blocks = " and ".join(map(block_text, layout.groups))
    note = f"draft model {draft.name}: {weights / MIB:,.0f} MiB of packed weights, and of the same memory {blocks}"
    share = weights / target.footprint.weights
    model = DraftModel(layout, share, min(sizes.max_model_tokens, draft.config.max_positions))
    notes = (*loaded.notes, note, *(f"draft model {draft.name}: {one}" for one in draft.notes))
    return replace(loaded, executor=PairedExecutor(target, executor), notes=notes, draft=model)


def _lanes_used(options: EngineOptions, num_workers: int) -> int:
    preset = preset_of(options.scheduler.name, (), chunk_s=options.scheduler.chunk_s, units=options.scheduler.units)
    if preset.is_fused or num_workers < 2:
        return 1
    return LANES if preset.overtakes else LANES - 1


def _workers(options: EngineOptions) -> Workers:
    usable = usable_processors()
    found = Processors(tuple(usable), tuple(one_of_each_core(usable)), processor_quota())
    return resolve_workers(options.threads, found)


def native_config(
    options: EngineOptions, max_positions: int, observe_logits: LogitsObserver | None = None
) -> tuple[NativeConfig, Workers]:
    """What the native executor is told, with every automatic choice made. Only where the native runtime is."""
    from plait.exec.native.executor import NativeConfig, usable_targets
    from plait.exec.native.packing import WeightDtype

    workers = _workers(options)
    config = NativeConfig(
        workers.cores,
        max_step_tokens=options.max_num_batched_tokens,
        max_rows=options.max_num_seqs,
        dtype=WeightDtype(options.dtype),
        num_lanes=LANES,
        max_positions=max_positions,
        target=resolve_instruction_set(options.instruction_set, usable_targets()),
        observe_logits=observe_logits,
        records_work=options.profile is not None,
    )
    return config, workers
