"""Forms: which form a trace file has, seen from its beginning, and the reader that goes with it.

Owns the list of forms, their recognition and the options that readers take. A new form is one module and one line here.
Invariant: a file can be read any number of times, from its start, with equal results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.agents import THINK_LIMIT_S, is_session, read_sessions
from plait.sim.traces.benchmarks import is_benchmark, read_benchmark
from plait.sim.traces.lines import head_of
from plait.sim.traces.litellm import is_litellm, read_litellm
from plait.sim.traces.objects import MOONCAKE_STEP_S, is_mooncake, read_objects
from plait.sim.traces.prompt_sets import is_batch_line, read_prompt_set
from plait.sim.traces.request import TraceRequest
from plait.sim.traces.sglang_log import TICK_S as SGLANG_TICK_S
from plait.sim.traces.sglang_log import is_sglang_log, read_sglang_log
from plait.sim.traces.spread import spread
from plait.sim.traces.table import COLUMNS, is_table, read_table
from plait.sim.traces.vllm_log import TICK_S as VLLM_TICK_S
from plait.sim.traces.vllm_log import is_vllm_log, read_vllm_log


class TraceForm(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    MOONCAKE = "mooncake"
    AGENTS = "agents"
    BATCH = "batch"
    BENCHMARK = "benchmark"
    VLLM_LOG = "vllm-log"
    SGLANG_LOG = "sglang-log"
    LITELLM = "litellm"


FORM_NAMES = tuple(form.value for form in TraceForm)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is to be read."""

    seed: int = 0
    """For what a file leaves to chance."""
    think_limit_s: float = THINK_LIMIT_S
    keep_bursts: bool = False
    """Leave requests where a coarse clock has put them."""


@dataclass(slots=True)
class Trace:
    """A file and how it is read. `notes` say what was left out or assumed when it was last read."""

    path: Path
    form: TraceForm
    reading: Reading = field(default_factory=Reading)
    notes: list[str] = field(default_factory=list)

    def requests(self) -> Iterator[TraceRequest]:
        """In the file's order; holds what the form's module says."""
        self.notes.clear()
        found, tick_s = self._reader()
        if tick_s is None or self.reading.keep_bursts:
            return found
        self.notes.append(f"requests of one moment are spread over the {tick_s:g} s of the file's clock")
        return spread(found, tick_s)

    def _reader(self) -> tuple[Iterator[TraceRequest], float | None]:
        """The requests, and how coarse the clock of their recorder is."""
        path, notes = self.path, self.notes
        readers: dict[TraceForm, Callable[[], tuple[Iterator[TraceRequest], float | None]]] = {
            TraceForm.CSV: lambda: (read_table(path), None),
            TraceForm.JSONL: lambda: (read_objects(path), None),
            TraceForm.MOONCAKE: lambda: (read_objects(path), MOONCAKE_STEP_S),
            TraceForm.AGENTS: lambda: (read_sessions(path, self.reading.think_limit_s), None),
            TraceForm.BATCH: lambda: (read_prompt_set(path), None),
            TraceForm.BENCHMARK: lambda: (read_benchmark(path, self.reading.seed, notes), None),
            TraceForm.VLLM_LOG: lambda: (read_vllm_log(path, notes), VLLM_TICK_S),
            TraceForm.SGLANG_LOG: lambda: (read_sglang_log(path, notes), SGLANG_TICK_S),
            TraceForm.LITELLM: lambda: (read_litellm(path, notes), None),
        }
        return readers[self.form]()


def open_trace(path: Path, form: str = "auto", reading: Reading | None = None) -> Trace:
    """A trace file of a form, which is recognised if it is "auto"."""
    if not path.exists():
        raise UsageError(f"{path} cannot be read as a trace: there is no such file")
    if path.is_dir():
        raise UsageError(f"{path} cannot be read as a trace: it is a folder; give one of its files")
    if not path.is_file():
        raise UsageError(f"{path} cannot be read as a trace: it is no regular file, and a trace is read more than once")
    chosen = recognise(path, head_of(path)) if form == "auto" else TraceForm(form)
    return Trace(path, chosen, reading or Reading())


def recognise(path: Path, head: str) -> TraceForm:
    """The form that a file beginning with `head` has. `UsageError` if it is none of them."""
    text = head.lstrip()
    if not text:
        raise UsageError(f"{path} is empty; a trace has at least one request")
    if is_vllm_log(head):
        return TraceForm.VLLM_LOG
    if is_sglang_log(head):
        return TraceForm.SGLANG_LOG
    if text[0] in "{[":
        return _recognise_json(path, text)
    if is_table(text) or path.suffixes[:1] == [".csv"]:
        return TraceForm.CSV
    raise UsageError(
        f"{path} is in no known form: it begins {text[:40]!r}; a trace is CSV with the columns {','.join(COLUMNS)}, "
        f"JSON lines, or a log (--format: {', '.join(FORM_NAMES)})"
    )


def _recognise_json(path: Path, text: str) -> TraceForm:
    values = _first_object(text)
    if values is not None:
        if is_session(values):
            return TraceForm.AGENTS
        if is_batch_line(values):
            return TraceForm.BATCH
        if is_mooncake(values):
            return TraceForm.MOONCAKE
    if is_litellm(text):
        return TraceForm.LITELLM
    if is_benchmark(text):
        return TraceForm.BENCHMARK
    if text[0] == "[":
        raise UsageError(
            f"{path} is a JSON array, but not one of LiteLLM's spend logs; write one object a line (JSON lines)"
        )
    return TraceForm.JSONL


def _first_object(text: str) -> dict[str, object] | None:
    """The first line if it is a whole object. A session's line may be longer than what is looked at."""
    line = text.split("\n", 1)[0]
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        cut = line.find('"requests"')
        return {"requests": [], "block_size": 0} if 0 <= cut < 500 and '"block_size"' in line[:500] else None
    return found if isinstance(found, dict) else None
