"""Figures: what one engine's steps and memory looked like over a run.

Owns batch sizes, the share of prefill, how full the memory was and how much of it was idle, and a timeline with a
bounded number of samples. Reads events and asks the memory; changes nothing.
Invariant: means over time are weighted by the duration of steps, so idle times do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from plait.core.events import Collected, Event, Submitted
from plait.core.ids import LaneId, StepId
from plait.core.plan_hash import PlanDigest
from plait.core.step import StepPlan, StepResult
from plait.kv.cache import KVCache
from plait.sim.form import Role

T = TypeVar("T")

MOST_SAMPLES = 2000
"""Of a timeline. When it is full, every second one goes and only every second is taken from then on."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step of a lane; a run of steps is one sample."""

    lane: LaneId
    start_s: float
    end_s: float
    num_steps: int
    num_decode: int
    """Sequences that were given one token in each step."""
    num_prefill_tokens: int


@dataclass(frozen=True, slots=True)
class MemorySample:
    at_s: float
    used_bytes: int
    """In tables of sequences, quarantined blocks included."""
    evictable_bytes: int
    free_bytes: int
    idle_bytes: int
    """Of the used ones, those of slots that hold no token."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Means over the time in steps, as parts of the pool; `waste_fraction` is of the used part."""

    total_bytes: int
    used_fraction: float
    evictable_fraction: float
    free_fraction: float
    waste_fraction: float
    most_used_fraction: float
    num_evictions: int
    timeline: tuple[MemorySample, ...]


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What one engine did."""

    role: Role
    num_steps: int
    num_decode_steps: int
    """In which some sequence decodes."""
    busy_s: float
    computed_tokens: int
    decode_batch_mean: float
    """Sequences that decode, over these steps."""
    prefill_share: float
    """Part of the time in steps that goes to prompts, each step divided by its tokens."""
    plan_hash: str
    memory: MemoryFigures
    timeline: tuple[StepSample, ...]


class Timeline(Generic[T]):
    """At most `MOST_SAMPLES` of what is added, evenly many from everywhere."""

    def __init__(self) -> None:
        self.samples: list[T] = []
        self._stride = 1
        self._num = 0

    def wants(self) -> bool:
        """Whether the next one would be kept; counts it."""
        self._num += 1
        return (self._num - 1) % self._stride == 0

    def add(self, sample: T) -> None:
        self.samples.append(sample)
        if len(self.samples) >= MOST_SAMPLES:
            del self.samples[1::2]
            self._stride *= 2


class EngineFigures:
    """An `EventSink` that becomes an `EngineReport`."""

    def __init__(self, role: Role, memory: Callable[[], KVCache]) -> None:
        self._role = role
        self._memory = memory
        self._digest = PlanDigest()
        self._steps = Timeline[StepSample]()
        self._levels = Timeline[MemorySample]()
        self._num_steps = self._num_decode_steps = self._num_decode = self._computed = 0
        self._busy_s = self._prefill_s = self._last_level_s = 0.0
        self._used_s = self._evictable_s = self._idle_s = self._sampled_s = 0.0
        self._most_used = 0
        self._runs: dict[StepId, StepPlan] = {}
        """In flight."""

    def __call__(self, event: Event) -> None:
        match event:
            case Collected(result=result):
                self._collected(result)
            case Submitted(plan=plan):
                self._digest.add(plan)
                if plan.num_steps > 1:
                    self._runs[plan.step] = plan
            case _:
                pass

    def report(self) -> EngineReport:
        return EngineReport(
            role=self._role,
            num_steps=self._num_steps,
            num_decode_steps=self._num_decode_steps,
            busy_s=self._busy_s,
            computed_tokens=self._computed,
            decode_batch_mean=_ratio(self._num_decode, self._num_decode_steps),
            prefill_share=_ratio(self._prefill_s, self._busy_s),
            plan_hash=self._digest.hexdigest(),
            memory=self._memory_figures(),
            timeline=tuple(self._steps.samples),
        )

    def _collected(self, result: StepResult) -> None:
        took_s, num_steps = result.end_s - result.start_s, result.num_steps
        computed = [one.num_computed for one in result.seqs]
        num_decode, num_tokens = computed.count(num_steps), sum(computed)
        num_prefill = num_tokens - num_decode * num_steps
        self._num_steps += num_steps
        self._busy_s += took_s
        self._computed += num_tokens
        if num_decode:
            self._num_decode_steps += num_steps
            self._num_decode += num_decode * num_steps
        if num_prefill:
            self._prefill_s += took_s * num_prefill / num_tokens
        if self._steps.wants():
            self._steps.add(StepSample(result.lane, result.start_s, result.end_s, num_steps, num_decode, num_prefill))
        run = self._runs.pop(result.step, None)
        if self._levels.wants():
            self._sample_memory(result, run)

    def _sample_memory(self, result: StepResult, run: StepPlan | None) -> None:
        memory = self._memory()
        usage, idle = memory.usage(), sum(memory.idle_bytes())
        weight_s, self._last_level_s = self._busy_s - self._last_level_s, self._busy_s
        later, fewer = (0.0, 0.0) if run is None else _not_yet(run, result, memory)
        self._sampled_s += weight_s
        self._used_s += weight_s * (usage.used_bytes - later)
        self._evictable_s += weight_s * usage.evictable_bytes
        self._idle_s += weight_s * (idle - later + fewer)
        self._most_used = max(self._most_used, usage.used_bytes)
        self._levels.add(MemorySample(result.end_s, usage.used_bytes, usage.evictable_bytes, usage.free_bytes, idle))

    def _memory_figures(self) -> MemoryFigures:
        report = self._memory().explain()
        total = report.usage.total_bytes
        used = _ratio(self._used_s, self._sampled_s * total)
        evictable = _ratio(self._evictable_s, self._sampled_s * total)
        return MemoryFigures(
            total_bytes=total,
            used_fraction=used,
            evictable_fraction=evictable,
            free_fraction=1.0 - used - evictable,
            waste_fraction=_ratio(self._idle_s, self._used_s),
            most_used_fraction=self._most_used / total,
            num_evictions=report.index.num_evictions,
            timeline=tuple(self._levels.samples),
        )


def _not_yet(run: StepPlan, result: StepResult, memory: KVCache) -> tuple[float, float]:
    """What a run has at its end and its steps, one by one, would have had later: bytes of blocks and of tokens, in the
    mean over its time.
    """
    took_s = result.end_s - result.start_s
    if took_s <= 0:
        return 0.0, 0.0
    starts = {chunk.seq: chunk.start for chunk in run.chunks}
    before_s = [0.0, *(end_s - result.start_s for end_s in result.ends_s)]
    size, slot_bytes, later = memory.tokens_per_block, memory.slot_bytes, 0.0
    for grant in run.blocks:
        for one in range(len(grant.blocks)):
            place = size * (grant.first + one) - starts[grant.seq]
            later += size * slot_bytes[grant.group] * before_s[min(max(place, 0), run.num_steps)]
    # Behind each step but the last every sequence has one token more.
    tokens_s = len(starts) * sum(before_s[1:-1])
    return later / took_s, sum(slot_bytes) * tokens_s / took_s


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
