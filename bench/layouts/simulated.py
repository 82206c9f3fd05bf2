"""Simulated: what a memory holds for nothing while a simulated engine runs, step by step and without a clock.

Owns the sampling. The steps, admissions and evictions are those of the engine's own scheduler; only their times are a
model's, so the figures are counts and the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.core.events import Event, Submitted
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.cost.hardware import find_hardware
from plait.kv.cache import KVCache
from plait.kv.layouts.serving import Cutting
from plait.kv.report import CacheReport
from plait.kv.rules import ALL_RULES
from plait.model.cost import Formats
from plait.sim.arrivals import Arrival
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, SimulatedMemory, watched_replica

from .visit import Refused
from .workload import Batch

DEVICE = "h100-80g"
"""Of no consequence: everything arrives at once, and is served in the order of arrival."""


@dataclass(slots=True)
class Held:
    """Bytes as they were seen: lent to groups, and of these held for nothing, by cause."""

    lent: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    """Free blocks on pages that are lent."""
    padding: list[int] = field(default_factory=list)
    partial: list[int] = field(default_factory=list)
    """Slots of used blocks that no step fills yet."""
    is_full: list[bool] = field(default_factory=list)
    """No page was free, so what lay idle was nobody else's."""

    def look(self, report: CacheReport) -> None:
        self.lent.append(sum(group.lent_bytes for group in report.groups))
        self.idle.append(sum(group.page_idle_bytes for group in report.groups))
        self.padding.append(sum(group.padding_bytes for group in report.groups))
        self.partial.append(sum(group.idle_bytes for group in report.groups))
        self.is_full.append(not report.usage.free_pages)

    def share(self, of: list[int]) -> float:
        return sum(of) / max(1, sum(self.lent))

    @property
    def idle_when_full(self) -> float:
        full = [place for place, is_full in enumerate(self.is_full) if is_full]
        return sum(self.idle[place] for place in full) / max(1, sum(self.lent[place] for place in full))


@dataclass(frozen=True, slots=True)
class Run:
    held: Held
    num_steps: int
    num_rows: int
    """Chunks of all steps."""
    num_computed: int
    """Tokens of all chunks."""
    num_preemptions: int
    hit_fraction: float

    @property
    def rows_of_a_step(self) -> float:
        return self.num_rows / max(1, self.num_steps)


def run(cutting: Cutting, memory_bytes: int, batch: Batch, max_rows: int, max_model_tokens: int) -> Run:
    """All requests of a batch at once, in one memory."""
    memories: list[KVCache] = []
    held, counts = Held(), [0, 0, 0]

    def listen(event: Event) -> None:
        if isinstance(event, Submitted):
            steps = event.plan.num_steps
            counts[0] += steps
            counts[1] += steps * len(event.plan.chunks)
            counts[2] += steps * sum(chunk.num_tokens for chunk in event.plan.chunks)
            held.look(memories[0].explain())

    sampling = SamplingParams(temperature=0.0, max_tokens=batch.output, ignore_eos=True)
    load = [
        Arrival(0.0, Request(RequestId(str(number)), prompt, sampling)) for number, prompt in enumerate(batch.prompts)
    ]
    spec = ReplicaSpec(
        cutting.program,
        Formats(),
        find_hardware(DEVICE),
        cache_bytes=memory_bytes,
        tokens_per_block=cutting.tokens_per_block,
        max_step_tokens=512,
        max_rows=max_rows,
        max_model_tokens=max_model_tokens,
        check_plans=False,
        memory=SimulatedMemory(cutting.plan(memory_bytes), cutting.rules(ALL_RULES), {}),
    )
    report = simulate(load, watched_replica(spec, memories.append), listen)
    if report.num_failed or report.num_refused:
        raise Refused(
            f"{report.num_failed} requests failed, {report.num_refused} do not fit into {memory_bytes:,} bytes"
        )
    return Run(held, *counts, report.num_preemptions, report.prefix_hit_fraction)
