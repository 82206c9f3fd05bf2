"""Sim setup: from options to a cluster and a workload, for every command that simulates.

Owns the defaults that depend on model and hardware, the words for what was chosen, and which file may be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from plait.cli.streams import say
from plait.config.ablations import scheduler_ablations
from plait.config.schedulers import CHUNKED, INTERLEAVED
from plait.config.sim_options import SimOptions
from plait.core.errors import UsageError
from plait.core.own_file import check_replaceable, check_writable
from plait.core.request import Slo
from plait.cost.hardware import HardwareSpec, find_hardware
from plait.cost.interleaved import INTERFERENCE
from plait.inspect.programs import BareModel, find_model
from plait.model.cache_layout import token_bytes
from plait.model.cache_type import CacheType
from plait.model.cost import Formats
from plait.model.shard import shard
from plait.sched.blend.feeds import JobOrder
from plait.sched.multiplex.presets import preset_of, shares_of
from plait.sim.cards.card import Card, find_card
from plait.sim.cluster import ClusterSpec
from plait.sim.drafts import every_record
from plait.sim.form import Form, Routing, parse_form
from plait.sim.load import Load
from plait.sim.offline import offline_load
from plait.sim.page.page import BEGINNING
from plait.sim.replica import ReplicaSpec, SimulatedDrafts
from plait.sim.results import SCHEMA, slo_object
from plait.sim.traces.forms import Reading, open_trace
from plait.sim.workload import CardSource, Extent, Pace, Source, Workload, measure

CARD_REQUESTS = 1000
MEMORY_PART = 0.9
"""Of a device's memory that weights and cache may fill; the rest is for activations and the runtime."""
LIMITS = {True: (256, 2048), False: (64, 512)}
"""Sequences and tokens of a step at most, on a GPU and on a processor."""
JSON_BEGINNING = f'{{"schema": "{SCHEMA}"'.encode()
STDOUT = Path("-")
ARRIVAL = "arrival"
STEP_BYTES = 2.0
"""Of a number between operations on a GPU; processors compute in four bytes."""


@dataclass(frozen=True, slots=True)
class Setup:
    cluster: ClusterSpec
    workload: Workload
    slo: Slo
    inputs: Mapping[str, object]
    """As in the report."""
    words: tuple[str, ...]
    """The same for people."""
    calibrated_on: str | None = None
    """What the prices were measured on; None: they were not."""

    def source_of(self, seed: int, count: int) -> Source:
        """The workload's source with whatever is drawn drawn anew, `count` requests where it has no end."""
        source = self.workload.source
        return replace(source, seed=seed, num_requests=count) if isinstance(source, CardSource) else source


def set_up(options: SimOptions, *, default_requests: int | None = None) -> Setup:
    """Everything but the run. `default_requests`: instead of all that a trace has."""
    for path, option, beginning, kind in (
        (options.json, "--json", JSON_BEGINNING, "report of plait sim"),
        (options.html, "--html", BEGINNING.encode(), "page of plait sim"),
    ):
        if path is not None and path != STDOUT:
            check_replaceable(path, beginning, option, kind)
            check_writable(path, option)
    if options.html == STDOUT:
        raise UsageError("--html is -; name a file, such as report.html")
    source, extent, named, words = _source(options, default_requests)
    model, hardware, form = find_model(options.model), find_hardware(options.hardware), parse_form(options.replicas)
    replica, more = _replica(options, model, hardware)
    cluster = ClusterSpec(replica, form, Routing(options.routing))
    requests = options.requests or (min(extent.num_requests, default_requests) if default_requests else None)
    pace = _pace(options, extent, requests)
    workload = Workload(source, extent, pace)
    slo = slo_of(options)
    lines = (*_model_words(model, hardware, form, replica), *more, *words, _pace_words(workload, options.order))
    calibration = hardware.calibration
    measured = None if calibration is None else f"{calibration.calibrated_on} with {calibration.model}"
    if calibration is not None and calibration.counted is not None:
        differs = calibration.counted.differs(replica.formats, model.program.num_parameters, calibration.model)
        if differs is not None:
            say(f"warning: {differs}")
    return Setup(cluster, workload, slo, _inputs(options, model, cluster, workload, named), lines, measured)


def _pace(options: SimOptions, extent: Extent, requests: int | None) -> Pace:
    if options.speed is not None and options.rate is not None:
        raise UsageError("--speed and --rate both say how fast a trace is played; give one of them")
    if options.speed is not None and extent.rate is None:
        raise UsageError("--speed is for traces with arrival times, of which this has none; give --rate instead")
    rate = options.rate
    if options.order != ARRIVAL:
        if options.rate is not None or options.speed is not None:
            raise UsageError(
                f"--order {options.order} has all requests there from the start; leave out --rate and --speed"
            )
        # Nobody looks at the moments; that there are some is all that is asked for.
        rate = None if extent.has_times else 1.0
    return Pace(rate, options.speed or 1.0, requests, options.length_divisor, options.seed)


def load_of(setup: Setup, options: SimOptions) -> Load | None:
    """Of an offline job; None: requests come as the workload says."""
    if options.order == ARRIVAL:
        return None
    return offline_load(setup.workload, setup.cluster, setup.slo, JobOrder(options.order), options.seed)


def slo_of(options: SimOptions) -> Slo:
    return Slo(ttft_s=options.ttft_slo, itl_s=options.itl_slo, tpot_s=options.tpot_slo)


def _source(
    options: SimOptions, default_requests: int | None
) -> tuple[Source, Extent, Mapping[str, object], tuple[str, ...]]:
    """Where requests come from, how many there are, how the report names it and how people do."""
    if (options.trace is None) == (options.card is None):
        raise UsageError("give the requests: --trace FILE, or --card NAME (plait sim cards lists them)")
    if options.card is not None:
        card = find_card(options.card)
        source = CardSource(card, options.requests or default_requests or CARD_REQUESTS, options.seed)
        return source, measure(source), {"card": card.name, "card_label": "surrogate"}, (_card_words(card),)
    assert options.trace is not None
    trace = open_trace(options.trace, options.format, Reading(seed=options.seed))
    extent = measure(trace)
    about = f"trace     {options.trace.name} ({trace.form}): {extent.num_requests:,} requests"
    named = {"trace": options.trace.name, "trace_form": str(trace.form)}
    return trace, extent, named, (about, *(f"          {note}" for note in trace.notes))


def _replica(options: SimOptions, model: BareModel, hardware: HardwareSpec) -> tuple[ReplicaSpec, tuple[str, ...]]:
    ranks = options.tensor_parallel_size
    cache_type = CacheType.F16 if options.kv_cache_dtype == "auto" else CacheType(options.kv_cache_dtype)
    per_token = token_bytes(shard(model.program, ranks), cache_type)
    memory = options.kv_cache_memory or _memory_left(model, hardware, ranks)
    capacity = memory // per_token if per_token else model.max_tokens
    longest = min(options.max_model_len or model.max_tokens, capacity)
    if options.max_model_len is not None and options.max_model_len > model.max_tokens:
        raise UsageError(
            f"--max-model-len is {options.max_model_len} but the model was made for {model.max_tokens} tokens; give at "
            "most that"
        )
    is_gpu = hardware.unit != "core"
    choice = options.scheduler
    is_interleaved = choice.name == INTERLEAVED
    name = CHUNKED if is_interleaved else choice.name
    preset = preset_of(name, scheduler_ablations(options.ablate), chunk_s=choice.chunk_s, units=choice.units)
    rows, step = LIMITS[is_gpu]
    element_bytes = cache_type.number_bytes if cache_type is not CacheType.INT8 else cache_type.vector_bytes(128) / 128
    replica = ReplicaSpec(
        program=model.program,
        formats=Formats(
            default_weight_bytes=model.bytes_per_weight,
            default_cache_bytes=float(element_bytes),
            activation_bytes=STEP_BYTES if is_gpu else 2 * STEP_BYTES,
        ),
        hardware=hardware,
        cache_bytes=memory,
        cache_type=cache_type,
        tokens_per_block=options.block_size,
        max_step_tokens=options.max_num_batched_tokens or step,
        max_rows=options.max_num_seqs or rows,
        max_model_tokens=longest,
        enable_prefix=options.enable_prefix_caching,
        tensor_parallel=ranks,
        preset=preset,
        interference=INTERFERENCE if is_interleaved else None,
        slo=slo_of(options),
        # Plans come from the scheduler that serves; looking at each again takes a third of the time.
        check_plans=False,
        seed=options.seed,
        drafts=None if options.speculative == "off" else SimulatedDrafts(every_record()),
    )
    if not preset.is_fused:
        # What cannot be is said here, not by the first decision.
        shares_of(preset, hardware.share_units, hardware.granule)
    cut = longest < model.max_tokens and options.max_model_len is None
    notes = [f"          sequences of at most {longest:,} tokens: what the cache holds"] if cut else []
    if hardware.calibration is not None and hardware.calibration.scatter is not None:
        notes.append("          steps depart from their prices as they did when it was calibrated")
    return replica, tuple(notes)


def _memory_left(model: BareModel, hardware: HardwareSpec, ranks: int) -> int:
    """Bytes of one device beside its part of the weights."""
    weights = model.weight_bytes / ranks
    left = int(MEMORY_PART * hardware.memory_bytes - weights)
    if left <= 0:
        raise UsageError(
            f"the weights of {model.facts.name} take {weights / 1e9:,.1f} GB of each device, but {hardware.name} has "
            f"{hardware.memory_bytes / 1e9:,.0f} GB; use a larger --tensor-parallel-size or other --hardware"
        )
    return left


def _model_words(model: BareModel, hardware: HardwareSpec, form: Form, replica: ReplicaSpec) -> tuple[str, ...]:
    devices = form.num_engines * replica.tensor_parallel
    cut = f", each cut over {replica.tensor_parallel} devices" if replica.tensor_parallel > 1 else ""
    return (
        f"model     {model.facts.name}: {model.program.num_parameters / 1e9:,.2f} B numbers, "
        f"{8 * model.bytes_per_weight:.3g} bits each",
        f"hardware  {devices} x {hardware.name}: {form} replica{'s' if str(form) != '1' else ''}{cut}",
        f"memory    {replica.cache_bytes / 2**30:,.1f} GiB of KV cache on each device, at most {replica.max_rows} "
        f"sequences and {replica.max_step_tokens:,} tokens a step",
    )


def _card_words(card: Card) -> str:
    return f"card      {card.title}; a surrogate drawn from published moments ({card.source.split(':')[0]})"


def _pace_words(workload: Workload, order: str) -> str:
    pace, extent = workload.pace, workload.extent
    count = f"{workload.num_requests:,} requests"
    repeated = (
        f", the trace {workload.num_requests / extent.num_requests:.3g} times"
        if pace.requests and (pace.requests > extent.num_requests)
        else ""
    )
    if order != ARRIVAL:
        return f"load      {count}{repeated}, an offline job in order {order}"
    if pace.rate is not None:
        what = "sessions" if extent.num_openings < extent.num_requests else "requests"
        return f"load      {count}{repeated}, {pace.rate:g} {what} a second"
    if extent.rate is None:
        return f"load      {count}{repeated}, all at once"
    speed = f", {pace.speed:g} times as fast" if pace.speed != 1 else ""
    return f"load      {count}{repeated}, {extent.rate * pace.speed:.3g} a second as recorded{speed}"


def _inputs(
    options: SimOptions, model: BareModel, cluster: ClusterSpec, workload: Workload, named: Mapping[str, object]
) -> dict[str, object]:
    replica, pace = cluster.replica, workload.pace
    return {
        "model": model.facts.name,
        "parameters": model.program.num_parameters,
        "bytes_per_weight": model.bytes_per_weight,
        "hardware": replica.hardware.name,
        "replicas": str(cluster.form),
        "routing": str(cluster.routing),
        "tensor_parallel_size": replica.tensor_parallel,
        "kv_cache_bytes": replica.cache_bytes,
        "kv_cache_dtype": str(replica.cache_type),
        "block_size": replica.tokens_per_block,
        "max_model_len": replica.max_model_tokens,
        "max_num_seqs": replica.max_rows,
        "max_num_batched_tokens": replica.max_step_tokens,
        "enable_prefix_caching": replica.enable_prefix,
        "order": options.order,
        "scheduler": str(options.scheduler),
        "ablate": options.ablate,
        "speculative": options.speculative,
        **named,
        "requests": workload.num_requests,
        "rate": pace.rate if options.order == ARRIVAL else None,
        "speed": pace.speed,
        "length_divisor": pace.length_divisor,
    }


@contextmanager
def progress(total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar that appears when a run takes longer than two seconds."""
    with tqdm(total=total, unit="request", disable=quiet, delay=2.0, leave=False) as bar:

        def one() -> None:
            bar.update(1)

        yield one


def write_file(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}; choose another file") from None


def target_words(slo: Slo) -> str:
    """ "TTFT 500 ms, TPOT 50 ms"."""
    parts = [
        f"{name.removesuffix('_s').upper()} {f'{value:g} s' if value >= 1 else f'{value * 1000:g} ms'}"
        for name, value in slo_object(slo).items()
        if isinstance(value, float)
    ]
    return ", ".join(parts)
