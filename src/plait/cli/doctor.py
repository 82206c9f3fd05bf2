"""Doctor: `plait doctor`, what this machine can serve, what keeps it from more, and what to do about it.

Owns the findings, the report and the exit code. What is measured is in `machine_rates`, what is to be expected of a
model in `expectation`. Invariant: every trouble comes with a remedy, and 1 is returned only if something prevents
serving.
"""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from plait.build import LoadedModel, choose_executor, cutting_of, load_model, model_facts
from plait.cli.machine_rates import MachineRates, measure_rates, rates_file, read_rates, write_rates
from plait.cli.streams import say, show, show_json
from plait.cli.terminal import MIB, download_progress
from plait.cli.tune import QUIET_SHARE, others_share
from plait.config.doctor_options import DoctorOptions
from plait.config.engine_options import EngineOptions
from plait.config.machine import (
    available_memory_bytes,
    memory_limit_bytes,
    one_of_each_core,
    processor_model,
    processor_quota,
    processor_seconds,
    usable_processors,
)
from plait.config.option import OptionSources
from plait.config.resolve import Processors, resolve_sizes, resolve_workers
from plait.core.errors import PlaitError
from plait.exec.native import presence
from plait.exec.native.tune_table import check_folder
from plait.model.cache_type import CacheType

if TYPE_CHECKING:
    # Needs the native runtime, which may not be here.
    from plait.cli.expectation import Expectation, Outlook

GIB = 1 << 30
SMALL_MEMORY = 512 * MIB
COMPILERS = ("c++", "g++", "clang++")
TELLING_S = 0.5
CLOSE = 0.15
"""How near an expectation is meant to be."""
_CACHE_BYTES = {CacheType.F32: 4.0, CacheType.F16: 2.0, CacheType.BF16: 2.0, CacheType.INT8: 1.0}


class Weight(StrEnum):
    PREVENTS = "prevents serving"
    SLOWS = "slows"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Trouble:
    weight: Weight
    what: str
    remedy: str


@dataclass(slots=True)
class Findings:
    """What was looked at. `rates` None: there is no native runtime to measure with."""

    plait: str
    python: str
    processor: str
    logical: int
    physical: int
    quota: float | None
    workers: int
    workers_reason: str
    instruction_sets: tuple[str, ...]
    free_bytes: int
    memory_limit_bytes: int | None
    """Of control groups; None: there is none."""
    cache_dir: str
    native: str
    """Empty: the runtime is here; else why not."""
    compiler: str | None
    rates: MachineRates | None = None
    rates_are_new: bool = False
    others: float | None = None
    """What part of the machine other programs used while something was measured."""
    model: Expectation | None = None
    checked: Outlook | None = None
    tune: str = ""
    troubles: list[Trouble] = field(default_factory=list)

    def add(self, weight: Weight, what: str, remedy: str) -> None:
        self.troubles.append(Trouble(weight, what, remedy))

    @property
    def exit_code(self) -> int:
        return int(any(one.weight is Weight.PREVENTS for one in self.troubles))

    def json_object(self) -> dict[str, object]:
        return {**asdict(self), "serves": self.exit_code == 0}


def run_doctor(sources: OptionSources) -> int:
    options, engine_options = sources.read(DoctorOptions), sources.read(EngineOptions)
    wants_model = sources.names("model") or options.check
    found = look(engine_options)
    _measure(found, options, engine_options)
    if wants_model:
        _look_at_model(found, options, engine_options)
    _judge(found)
    if options.json:
        show_json(found.json_object())
    else:
        for line in lines(found, wants_model=wants_model):
            show(line)
    return found.exit_code


def look(options: EngineOptions) -> Findings:
    """What can be seen without measuring."""
    usable = usable_processors()
    separate = one_of_each_core(usable)
    quota = processor_quota()
    workers = resolve_workers(options.threads, Processors(tuple(usable), tuple(separate), quota))
    troubles: list[Trouble] = []
    try:
        missing = presence.missing() or ""
    except PlaitError as error:
        missing = str(error)
        what, _, remedy = missing.partition("; ")
        troubles.append(Trouble(Weight.PREVENTS, what, remedy or "reinstall Plait"))
    found = Findings(
        plait=version("plait"),
        python=platform.python_version(),
        processor=processor_model(),
        logical=len(usable),
        physical=len(separate),
        quota=quota,
        workers=len(workers.cores),
        workers_reason=workers.reason,
        instruction_sets=() if missing else _targets(),
        free_bytes=available_memory_bytes(),
        memory_limit_bytes=memory_limit_bytes(),
        cache_dir=str(options.cache_dir),
        native=missing,
        compiler=next((path for name in COMPILERS if (path := shutil.which(name))), None),
        troubles=troubles,
    )
    _check_cache(found, options.cache_dir)
    return found


def _targets() -> tuple[str, ...]:
    from plait.exec.native.executor import usable_targets

    return usable_targets()


def _check_cache(found: Findings, cache_dir: Path) -> None:
    try:
        check_folder(cache_dir)
    except PlaitError as error:
        found.add(
            Weight.PREVENTS,
            f"models cannot be kept in {cache_dir} ({str(error).partition(';')[0]})",
            "name a folder that can be written with --cache-dir, or set PLAIT_CACHE_DIR",
        )


def _measure(found: Findings, options: DoctorOptions, engine_options: EngineOptions) -> None:
    if found.native:
        return
    from plait import _native

    began, before = time.monotonic(), processor_seconds()
    machine = f"{found.processor} {found.plait} {sys.platform} {_native.build_info()['compiler']}"
    path = rates_file(machine, found.workers, engine_options.cache_dir)
    found.rates = None if options.again else read_rates(path, found.workers)
    if found.rates is None:
        found.rates, found.rates_are_new = measure_rates(_native, found.workers), True
        found.others = _others(before, began)
        if found.others is None or found.others <= QUIET_SHARE:  # else it would be wrong for ever
            write_rates(path, found.rates, found.processor)


def _others(before: tuple[float, float] | None, began_s: float) -> float | None:
    """What part of the machine other programs used since then; None: it is too short to tell by ticks of the clock."""
    took_s = time.monotonic() - began_s
    return None if took_s < TELLING_S else min(1.0, others_share(before, processor_seconds(), took_s))


def _look_at_model(found: Findings, options: DoctorOptions, engine_options: EngineOptions) -> None:
    """Load it, say what is to be expected, and check that if asked to. Trouble with the model is a finding."""
    try:
        with download_progress(engine_options.model, quiet=options.json) as progress:
            model = load_model(engine_options, progress, datetime.now)
        if found.rates is not None:
            _expect(found, found.rates, model, options, engine_options)
    except PlaitError as error:
        what, _, remedy = str(error).partition("; ")
        found.add(Weight.PREVENTS, what, remedy or "see above")


def _expect(
    found: Findings, rates: MachineRates, model: LoadedModel, options: DoctorOptions, engine_options: EngineOptions
) -> None:
    # Imports the native runtime, which is here if there are rates.
    from plait.cli.expectation import Question, expect

    if model.weights.total_bytes > found.free_bytes:
        needs, free = model.weights.total_bytes / GIB, found.free_bytes / GIB
        found.add(
            Weight.PREVENTS,
            f"the weights of {model.name} are {needs:.1f} GiB but {free:.1f} GiB of memory are free",
            "take a smaller model, or one of fewer bits",
        )
        return
    choice = choose_executor(engine_options, model.program, None)
    if not choice.is_native:
        found.add(
            Weight.SLOWS, f"{model.name} runs on the reference executor only: {choice.notes}", "take another file"
        )
        return
    cutting = cutting_of(engine_options, model, choice.cache_type)
    facts = model_facts(model, cutting)
    free_beside = max(0, found.free_bytes - model.weights.total_bytes)
    sizes = resolve_sizes(engine_options, facts, free_beside)
    began, before = time.monotonic(), processor_seconds()
    if not options.json:
        say("measuring the model for some seconds" + (", and running the whole of it in turn" if options.check else ""))
    question = Question(
        users=options.users,
        context=options.context,
        memory_bytes=found.free_bytes,
        cache_bytes=_CACHE_BYTES[choice.cache_type],
        capacity_tokens=sizes.capacity_tokens,
    )
    found.model, found.checked = expect(model, engine_options, rates, question, check=options.check)
    found.others = _others(before, began)
    found.tune = _tune_text(model, engine_options)


def _tune_text(model: LoadedModel, options: EngineOptions) -> str:
    folder = options.cache_dir / "tune"
    count = len(list(folder.glob("*.json"))) if folder.is_dir() else 0
    return f"{count} in {folder}" if count else f"none; plait tune {options.model} looks for better sizes of units"


def _judge(found: Findings) -> None:
    """Troubles that follow from what was found."""
    if found.native and not any(one.weight is Weight.PREVENTS for one in found.troubles):
        way = "pip install --force-reinstall --no-deps plait"
        found.add(
            Weight.SLOWS,
            f"no native runtime, so models run on the reference executor, many times slower: {found.native}",
            f"{'install a C++ compiler (GCC 11 or Clang 14 and newer), then ' if found.compiler is None else ''}{way}",
        )
    if found.instruction_sets and found.instruction_sets[-1] == "baseline":
        found.add(Weight.SLOWS, "the processor has no AVX2", "a machine with AVX2 is several times as fast")
    if found.free_bytes < SMALL_MEMORY:
        free = found.free_bytes / MIB
        found.add(
            Weight.PREVENTS, f"{free:.0f} MiB of memory are free", "end other programs or raise the container's limit"
        )
    if found.quota is not None and found.quota < found.physical:
        found.add(
            Weight.SLOWS,
            f"the control group allows {found.quota:g} of {found.physical} cores",
            "raise its quota (docker run --cpus)",
        )
    if found.model is not None and found.model.fitting_users == 0:
        found.add(
            Weight.SLOWS,
            f"no user with {found.model.context:,} tokens fits in the KV cache",
            "give it more with --kv-cache-memory, or --kv-cache-dtype int8",
        )
    if found.others is not None and found.others > QUIET_SHARE:
        found.add(
            Weight.NOTE,
            f"other programs used {found.others:.0%} of the machine while it was measured, so figures are too low",
            "measure again with --again when it is quiet",
        )


def lines(found: Findings, *, wants_model: bool) -> Iterator[str]:
    """The report for people."""
    yield f"plait       {found.plait}, Python {found.python}"
    cores = f"{found.physical} cores" + (f" ({found.logical} threads)" if found.logical != found.physical else "")
    quota = "" if found.quota is None else f", quota {found.quota:g}"
    yield f"processor   {found.processor}, {cores}{quota}; {found.workers} workers: {found.workers_reason}"
    if found.instruction_sets:
        sets = ", ".join(found.instruction_sets)
        yield f"native      here, with {found.instruction_sets[-1]} instructions (of {sets})"
    else:
        yield f"native      not here: {found.native}"
    yield f"compiler    {found.compiler or 'none found'} (needed only to build Plait)"
    limit = found.memory_limit_bytes
    allowed = "no limit by a control group" if limit is None else f"a control group allows {limit / GIB:.1f} GiB in all"
    yield f"memory      {found.free_bytes / GIB:.1f} GiB free; {allowed}"
    yield f"models in   {found.cache_dir}"
    if (rates := found.rates) is not None:
        when = "now" if found.rates_are_new else "earlier; --again measures anew"
        read = rates.read_bytes_per_s / 1e9
        yield (
            f"rates       reading {read:.1f} GB/s, float32 {rates.f32_per_s / 1e9:,.0f} GFLOP/s, int8 "
            f"{rates.int8_per_s / 1e9:,.0f} GOP/s on {rates.threads} threads (measured {when})"
        )
        if not wants_model:
            yield (
                f"            so of a model file of 1 GB at most {read:.0f} tokens a second come alone; "
                "plait doctor MODEL says more"
            )
    if found.model is not None:
        yield from _model_lines(found.model, found.checked)
        yield f"tune table  {found.tune}"
    yield ""
    for trouble in found.troubles:
        yield f"{trouble.weight}: {trouble.what}"
        yield f"  -> {trouble.remedy}"
    yield "something prevents serving" if found.exit_code else "nothing prevents serving"


def _model_lines(model: Expectation, checked: Outlook | None) -> Iterator[str]:
    yield ""
    yield f"{model.model}: {model.weight_bytes / MIB:,.0f} MiB of weights"
    part = (
        "the whole model"
        if model.measured_layers == model.num_layers
        else f"{model.measured_layers} of {model.num_layers} layers"
    )
    yield (
        f"  expected from the cost model's roofline and what {part} reached of it: {model.efficiency.alone:.0%} "
        f"for one answer, {model.efficiency.prompt:.0%} for a prompt, {model.efficiency.crowd:.0%} for {model.users} "
        "at once"
    )
    alone, crowd = model.requests.alone, model.requests.crowd
    rows = (
        (f"one answer alone ({alone[0]} in, {alone[1]} out)", "alone", "tokens/s"),
        (f"a prompt of {model.requests.prompt:,} tokens", "prompt", "tokens/s"),
        (f"{model.users} at once ({crowd[0]} in, {crowd[1]} out), together", "crowd", "tokens/s"),
    )
    head = f"  {'':<44}{'expected':>10}"
    yield head if checked is None else f"{head}{'measured':>10}{'':>4}measured/expected"
    for name, kind, unit in rows:
        expected = getattr(model.expected, kind)
        line = f"  {name:<44}{expected:>10,.0f}"
        if checked is not None:
            measured = getattr(checked, kind)
            line += f"{measured:>10,.0f}{measured / expected:>10.2f}"
        yield f"{line} {unit if checked is None else ''}".rstrip()
    fits = "user fits" if model.fitting_users == 1 else "users fit"
    yield (
        f"  {model.fitting_users} {fits} with {model.context:,} tokens each in a KV cache of "
        f"{model.capacity_tokens:,} tokens (--kv-cache-memory changes it), about {model.fitting_each_per_s:.1f} "
        "tokens/s each if all answer at once"
    )
    if checked is not None:
        far = [kind for kind in ("alone", "prompt", "crowd") if abs(_off(model.expected, checked, kind)) > CLOSE]
        verdict = f"within {CLOSE:.0%}" if not far else f"NOT within {CLOSE:.0%}: {', '.join(far)}"
        yield f"  what came is {verdict}"


def _off(expected: Outlook, checked: Outlook, kind: str) -> float:
    return float(getattr(checked, kind) / getattr(expected, kind) - 1)
