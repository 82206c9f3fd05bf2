"""Reports: what an event stream says about speed, as the numbers people compare.

Owns the latencies of every request and how they are summed up. Reads events only, so a report of a simulation and one
of a served day are made alike.
Invariant: every number comes from events; nothing is taken from a trace or a model.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.core.events import (
    Arrived,
    Collected,
    Emitted,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
)
from plait.core.ids import SeqId
from plait.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class Distribution:
    """`percentiles` are linear between the two nearest samples."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Report:
    """A latency is None where no request had it (one output token: no inter-token latency)."""

    num_finished: int
    """Requests' sequences that reached their end, by a stop or by length."""
    num_failed: int
    """Sequences that were aborted or ended with an error."""
    num_refused: int
    prompt_tokens: int
    output_tokens: int
    num_steps: int
    computed_tokens: int
    num_preemptions: int
    prefix_hit_fraction: float
    """Prompt tokens found in the prefix index at first admission, of all prompt tokens of ended sequences."""
    makespan_s: float
    """First arrival to last end."""
    busy_fraction: float
    """Time in steps over the makespan; lanes that run side by side may take it above 1."""
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    queue_s: Distribution | None
    """Arrival to the first plan."""
    ttft_s: Distribution | None
    itl_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None

    def lines(self) -> list[str]:
        """A table for people."""
        found = [
            f"requests {self.num_finished} finished, {self.num_failed} failed, {self.num_refused} refused "
            f"in {self.makespan_s:.1f} s",
            f"tokens   {self.prompt_tokens} prompt ({self.prefix_hit_fraction:.1%} prefix hits), {self.output_tokens} "
            f"output, {self.output_tokens_per_s:.1f} output/s, {self.total_tokens_per_s:.1f} total/s",
            f"steps    {self.num_steps}, {self.computed_tokens} tokens computed, busy {self.busy_fraction:.1%}, "
            f"{self.num_preemptions} preemptions",
            f"{'seconds':8} {'mean':>9} {'p50':>9} {'p90':>9} {'p99':>9} {'longest':>9}",
        ]
        for name in ("queue_s", "ttft_s", "itl_s", "tpot_s", "e2e_s"):
            one: Distribution | None = getattr(self, name)
            if one is not None:
                numbers = (one.mean, one.p50, one.p90, one.p99, one.longest)
                found.append(f"{name[:-2]:8} " + " ".join(f"{number:9.4f}" for number in numbers))
        return found


@dataclass(slots=True)
class _Open:
    """A sequence on its way."""

    arrival_s: float
    first_token_s: float | None = None
    last_token_s: float = 0.0
    is_scheduled: bool = False


def _samples() -> array[float]:
    return array("d")


@dataclass(slots=True)
class ReportBuilder:
    """An `EventSink` that becomes a `Report`."""

    num_finished: int = 0
    num_failed: int = 0
    num_refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    num_steps: int = 0
    computed_tokens: int = 0
    num_preemptions: int = 0
    busy_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    queue_s: array[float] = field(default_factory=_samples)
    ttft_s: array[float] = field(default_factory=_samples)
    itl_s: array[float] = field(default_factory=_samples)
    tpot_s: array[float] = field(default_factory=_samples)
    e2e_s: array[float] = field(default_factory=_samples)
    _open: dict[SeqId, _Open] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        match event:
            case Arrived():
                self._open[event.seq] = _Open(event.at_s)
                self.first_s = event.at_s if self.first_s is None else self.first_s
            case Scheduled():
                self._scheduled(event)
            case Emitted():
                self._emitted(event)
            case Finished():
                self._finished(event)
            case Collected(result=result):
                self.num_steps += 1
                self.busy_s += result.end_s - result.start_s
                self.computed_tokens += sum(one.num_computed for one in result.seqs)
            case Preempted():
                self.num_preemptions += 1
            case Refused():
                self.num_refused += 1
            case _:
                pass

    def report(self) -> Report:
        span_s = 0.0 if self.first_s is None else self.last_s - self.first_s

        def per_s(amount: float) -> float:
            return amount / span_s if span_s > 0 else 0.0

        return Report(
            num_finished=self.num_finished,
            num_failed=self.num_failed,
            num_refused=self.num_refused,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            num_steps=self.num_steps,
            computed_tokens=self.computed_tokens,
            num_preemptions=self.num_preemptions,
            prefix_hit_fraction=self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            makespan_s=span_s,
            busy_fraction=per_s(self.busy_s),
            output_tokens_per_s=per_s(self.output_tokens),
            total_tokens_per_s=per_s(self.prompt_tokens + self.output_tokens),
            requests_per_s=per_s(self.num_finished),
            queue_s=distribution(self.queue_s),
            ttft_s=distribution(self.ttft_s),
            itl_s=distribution(self.itl_s),
            tpot_s=distribution(self.tpot_s),
            e2e_s=distribution(self.e2e_s),
        )

    def _scheduled(self, event: Scheduled) -> None:
        one = self._open[event.seq]
        if not one.is_scheduled:
            one.is_scheduled = True
            self.queue_s.append(event.at_s - one.arrival_s)

    def _emitted(self, event: Emitted) -> None:
        one = self._open[event.seq]
        if one.first_token_s is None:
            one.first_token_s = event.at_s
            self.ttft_s.append(event.at_s - one.arrival_s)
        else:
            self.itl_s.append(event.at_s - one.last_token_s)
        # Tokens of one step come together: accepted drafts have no gap before them.
        self.itl_s.extend([0.0] * (event.num_tokens - 1))
        one.last_token_s = event.at_s

    def _finished(self, event: Finished) -> None:
        one = self._open.pop(event.seq)
        self.last_s = event.at_s
        self.prompt_tokens += event.num_prompt
        self.cached_tokens += event.num_cached
        self.output_tokens += event.num_output
        if event.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            self.num_failed += 1
            return
        self.num_finished += 1
        self.e2e_s.append(event.at_s - one.arrival_s)
        if event.num_output > 1 and one.first_token_s is not None:
            self.tpot_s.append((one.last_token_s - one.first_token_s) / (event.num_output - 1))


def distribution(samples: Sequence[float]) -> Distribution | None:
    """None for no samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    p50, p90, p99 = (_percentile(ordered, fraction) for fraction in (0.5, 0.9, 0.99))
    return Distribution(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def _percentile(ordered: Sequence[float], fraction: float) -> float:
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
