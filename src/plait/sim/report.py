"""Reports: what an event stream says about speed, as the numbers people compare.

Owns the latencies of every request and how they are summed up. Reads events only, so a report of a simulation and one
of a served day are made alike.
Invariant: every number comes from events; nothing is taken from a trace or a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.core.errors import OVERLOADED
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
from plait.core.ids import RequestId, SeqId
from plait.core.request import FinishReason
from plait.core.step import SeqStatus, StepResult
from plait.sim.samples import Distribution, Samples


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one sequence of a request fared. Times are simulated seconds."""

    request: RequestId
    arrival_s: float
    scheduled_s: float | None
    """When its first tokens were planned; None: never."""
    first_token_s: float | None
    last_token_s: float | None
    end_s: float
    longest_gap_s: float
    """Between two of its tokens; 0 for fewer than two."""
    num_prompt: int
    num_cached: int
    num_output: int
    reason: FinishReason

    @property
    def is_whole(self) -> bool:
        """It came to its own end."""
        return self.reason in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time between its tokens; None for fewer than two."""
        if self.num_output < 2 or self.first_token_s is None or self.last_token_s is None:
            return None
        return (self.last_token_s - self.first_token_s) / (self.num_output - 1)


OutcomeSink = Callable[[Outcome], None]


def nobody(outcome: Outcome) -> None:
    """Nobody listens."""


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
    num_overloaded: int = 0
    """Of those refused, who would have had their first token too late."""

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
    """A sequence on its way. What other engines gave it before is in `num_prompt` (0: none did) to `num_output`."""

    arrival_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    longest_gap_s: float = 0.0
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0


class ReportBuilder:
    """An `EventSink` that becomes a `Report`; for several engines, `tell` says whose event it is."""

    def __init__(self, outcomes: OutcomeSink = nobody) -> None:
        self._outcomes = outcomes
        self._open: dict[tuple[int, SeqId], _Open] = {}
        self._between: dict[RequestId, _Open] = {}
        """Sequences that have left one engine for another."""
        self._num = Counter[str]()
        self._busy_s = 0.0
        self._run_gap_s: dict[int, float] = {}
        """The longest gap inside the last run of an engine."""
        self._first_s: float | None = None
        self._last_s = 0.0
        self.queue_s, self.ttft_s, self.itl_s, self.tpot_s, self.e2e_s = (Samples() for _ in range(5))

    def __call__(self, event: Event) -> None:
        self.tell(0, event)

    def tell(self, engine: int, event: Event) -> None:
        # The most frequent first.
        match event:
            case Emitted():
                self.emitted(engine, event)
            case Arrived():
                self._arrived(engine, event)
            case Scheduled():
                self._scheduled(engine, event)
            case Finished():
                self._finished(engine, event)
            case Collected(result=result):
                self._collected(engine, result)
            case Preempted():
                self._num["preemptions"] += 1
            case Refused(request=request, code=code):
                self._between.pop(request, None)
                self._num["refused"] += 1
                self._num["overloaded"] += code == OVERLOADED
            case _:
                pass

    def hand_over(self, engine: int, event: Finished) -> None:
        """In place of the end that `event` tells: the sequence goes on at another engine, under the same request id."""
        one = self._open.pop((engine, event.seq))
        one.num_prompt, one.num_cached, one.num_output = event.num_prompt, event.num_cached, event.num_output
        self._between[event.request] = one

    def report(self) -> Report:
        span_s = 0.0 if self._first_s is None else self._last_s - self._first_s
        num = self._num

        def per_s(amount: float) -> float:
            return amount / span_s if span_s > 0 else 0.0

        return Report(
            num_finished=num["finished"],
            num_failed=num["failed"],
            num_refused=num["refused"],
            prompt_tokens=num["prompt"],
            output_tokens=num["output"],
            num_steps=num["steps"],
            computed_tokens=num["computed"],
            num_preemptions=num["preemptions"],
            prefix_hit_fraction=num["cached"] / num["prompt"] if num["prompt"] else 0.0,
            makespan_s=span_s,
            busy_fraction=per_s(self._busy_s),
            output_tokens_per_s=per_s(num["output"]),
            total_tokens_per_s=per_s(num["prompt"] + num["output"]),
            requests_per_s=per_s(num["finished"]),
            queue_s=self.queue_s.distribution(),
            ttft_s=self.ttft_s.distribution(),
            itl_s=self.itl_s.distribution(),
            tpot_s=self.tpot_s.distribution(),
            e2e_s=self.e2e_s.distribution(),
            num_overloaded=num["overloaded"],
        )

    def _arrived(self, engine: int, event: Arrived) -> None:
        one = self._between.pop(event.request, None)
        self._open[engine, event.seq] = _Open(event.at_s) if one is None else one
        self._first_s = event.at_s if self._first_s is None else self._first_s

    def _scheduled(self, engine: int, event: Scheduled) -> None:
        one = self._open[engine, event.seq]
        if one.scheduled_s is None:
            one.scheduled_s = event.at_s
            self.queue_s.add(event.at_s - one.arrival_s)

    def _collected(self, engine: int, result: StepResult) -> None:
        self._num["steps"] += result.num_steps
        self._num["computed"] += sum([one.num_computed for one in result.seqs])
        if not result.ends_s:
            self._busy_s += result.end_s - result.start_s
            return
        # Behind the first step of a run its sequences have their tokens together, so gaps are counted once for all.
        num_live = sum(one.status is SeqStatus.OK for one in result.seqs)
        start_s, longest_s = result.start_s, 0.0
        for place, end_s in enumerate(result.ends_s):
            gap_s = end_s - start_s
            self._busy_s += gap_s
            if place:
                longest_s = max(longest_s, gap_s)
                self.itl_s.add(gap_s, num_live)
            start_s = end_s
        self._run_gap_s[engine] = longest_s

    def emitted(self, engine: int, event: Emitted) -> None:
        """As `tell`, for who knows what it is."""
        at_s, seq, num_tokens, run_first_s = event
        one = self._open[engine, seq]
        first_s = at_s if run_first_s is None else run_first_s
        if one.last_token_s is None:
            one.first_token_s = first_s
            self.ttft_s.add(first_s - one.arrival_s)
        else:
            gap_s = first_s - one.last_token_s
            if gap_s > one.longest_gap_s:
                one.longest_gap_s = gap_s
            self.itl_s.add(gap_s)
        if run_first_s is not None:
            one.longest_gap_s = max(one.longest_gap_s, self._run_gap_s[engine])
        elif num_tokens > 1:
            # Tokens of one step come together: accepted drafts have no gap before them.
            self.itl_s.add(0.0, num_tokens - 1)
        one.last_token_s = at_s

    def emitted_together(
        self, engine: int, at_s: float, run_first_s: float | None, said: Sequence[tuple[SeqId, int]]
    ) -> None:
        """As `emitted` for (sequence, tokens) of one step; most had the same gap, which is counted once for all."""
        known = self._open
        first_s = at_s if run_first_s is None else run_first_s
        same_s, num_same = 0.0, 0
        for seq, num_tokens in said:
            one = known[engine, seq]
            last_s = one.last_token_s
            if last_s is None or run_first_s is not None or num_tokens > 1:
                self.itl_s.add(same_s, num_same)
                num_same = 0
                self.emitted(engine, Emitted.of(at_s, seq, num_tokens, run_first_s))
                continue
            gap_s = first_s - last_s
            if gap_s != same_s:
                self.itl_s.add(same_s, num_same)
                same_s, num_same = gap_s, 0
            num_same += 1
            if gap_s > one.longest_gap_s:
                one.longest_gap_s = gap_s
            one.last_token_s = at_s
        self.itl_s.add(same_s, num_same)

    def _finished(self, engine: int, event: Finished) -> None:
        one = self._open.pop((engine, event.seq))
        outcome = Outcome(
            event.request,
            one.arrival_s,
            one.scheduled_s,
            one.first_token_s,
            one.last_token_s,
            event.at_s,
            one.longest_gap_s,
            one.num_prompt or event.num_prompt,
            one.num_cached if one.num_prompt else event.num_cached,
            one.num_output + event.num_output,
            event.reason,
        )
        self._last_s = event.at_s
        self._num.update(prompt=outcome.num_prompt, cached=outcome.num_cached, output=outcome.num_output)
        if outcome.is_whole:
            self._num["finished"] += 1
            self.e2e_s.add(outcome.end_s - outcome.arrival_s)
            if outcome.tpot_s is not None:
                self.tpot_s.add(outcome.tpot_s)
        else:
            self._num["failed"] += 1
        self._outcomes(outcome)
