"""Steps of an engine as they were, by what was in them: for whoever looks for what made somebody wait."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from plait.core.events import Arrived, Collected, Event, Submitted
from plait.core.ids import SeqId, StepId
from plait.core.request import ServiceClass

WORKER = "plait-worker"
MOST_ROWS = 8


@dataclass(frozen=True, slots=True)
class Step:
    """`rows` and `prompt_tokens` are of online sequences; `offline_tokens` of both kinds."""

    start_s: float
    end_s: float
    rows: int
    prompt_tokens: int
    offline_tokens: int

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(slots=True)
class StepRecords:
    """An `EventSink`."""

    steps: list[Step] = field(default_factory=list)
    _online: set[SeqId] = field(default_factory=set)
    _open: dict[StepId, tuple[int, int, int]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Arrived):
            if event.service_class is ServiceClass.ONLINE:
                self._online.add(event.seq)
        elif isinstance(event, Submitted):
            rows = prompt = offline = 0
            for chunk in event.plan.chunks:
                if chunk.seq not in self._online:
                    offline += chunk.num_tokens
                elif chunk.num_tokens == 1:
                    rows += 1
                else:
                    prompt += chunk.num_tokens
            self._open[event.plan.step] = (rows, prompt, offline)
        elif isinstance(event, Collected):
            result = event.result
            self.steps.append(Step(result.start_s, result.end_s, *self._open.pop(result.step)))


def decode_ms(steps: Sequence[Step]) -> dict[int, tuple[int, float]]:
    """By their number of rows, steps of online rows in decode and nothing else: how many, and their mean."""
    by_rows: dict[int, list[float]] = {}
    for step in steps:
        if step.rows and not step.prompt_tokens and not step.offline_tokens and step.rows <= MOST_ROWS:
            by_rows.setdefault(step.rows, []).append(1000 * step.seconds)
    return {rows: (len(times), fmean(times)) for rows, times in sorted(by_rows.items())}


def pauses_ms(steps: Sequence[Step]) -> list[float]:
    """Between two steps with online rows in decode, when nothing ran."""
    pairs = pairwise(steps)
    return [1000 * max(0.0, late.start_s - early.end_s) for early, late in pairs if early.rows and late.rows]


def thread_seconds() -> tuple[float, float]:
    """Processor seconds of this process so far: of workers that live, and of everything that ever ran in it."""
    workers = 0.0
    for stat in Path("/proc/self/task").glob("*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name == WORKER:
            workers += sum(map(int, rest.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    whole = os.times()
    return workers, whole.user + whole.system
