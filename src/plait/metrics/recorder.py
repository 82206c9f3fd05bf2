"""Recorder: an engine's phases and steps on one clock, and what the time between steps was spent on.

Owns the division of the time in which no step ran into Python, wake-ups and idleness. It is told of phases and events
by the engine's thread and asks nobody; what workers did inside steps it takes from the executor's log.
Invariant: every moment between the first and the last phase is counted once. With steps on several lanes at a time, a
moment counts as without a step only if the steps collected so far leave it so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from plait.core.events import Collected, Event, Submitted
from plait.core.ids import StepId
from plait.core.profiling import Phase, StepWork, WorkLog
from plait.core.step import StepResult
from plait.metrics.profile_figures import Figures, Overhead, StepCost, Units

MOST_PHASES = 200_000
"""Of the engine's thread in a trace, and as many steps; 25 MB of it."""

MOST_COSTS = 100_000
"""Steps whose overhead is kept, the latest ones."""

MOST_UNSETTLED = 1000

RUNTIME = "next operation"
WAITING = "waiting for another worker's unit"
TAKING_UP = "from one queued step to the next"
WAKING_WORKERS = "waking workers"
WAKING_PYTHON = "waking Python"
PYTHON = "Python, no step running"
UNTOLD = "in steps"


class PhaseSpan(NamedTuple):
    phase: Phase
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StepSpan:
    """A step as it ran, for the trace."""

    step: StepId
    lane: int
    begin_s: float
    end_s: float
    num_rows: int
    num_sequences: int
    status: str


@dataclass(frozen=True, slots=True)
class _Submission:
    at_s: float
    num_rows: int
    num_sequences: int


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A collected step whose kernels are not added up yet. `other_s`: its own time, and what lay in front of it."""

    step: StepId
    other_s: float
    num_sequences: int


class Recorder:
    """`event` is an EventSink, `phase` a PhaseSink."""

    def __init__(self, now: Callable[[], float], work: WorkLog | None) -> None:
        self._now = now
        self._work = work
        self.start_s = now()
        self.phases: list[PhaseSpan] = []
        self.steps: list[StepSpan] = []
        self.ends_s: float | None = None
        """When the trace was full."""
        self._phase, self._since_s = Phase.WAIT, self.start_s
        self._recent: deque[PhaseSpan] = deque()
        """Phases that reach behind `_ran_until_s`."""
        self._ran_until_s = self._collected_s = self.start_s
        self._submitted: dict[StepId, _Submission] = {}
        self._unsettled: list[_Unsettled] = []
        self._settled: dict[StepId, StepWork] = {}
        """Work of steps whose results come in the same turn, but later."""
        self._costs: deque[StepCost] = deque(maxlen=MOST_COSTS)
        self._between_s = dict.fromkeys((TAKING_UP, WAKING_WORKERS, WAKING_PYTHON, PYTHON), 0.0)
        self._phase_s = dict.fromkeys(Phase, 0.0)
        self._alone_s = dict.fromkeys(Phase, 0.0)
        self._ran_s = self._idle_s = 0.0
        self._num_steps = self._num_rows = self._num_sequences = 0

    def phase(self, phase: Phase) -> None:
        now_s = self._now()
        span = PhaseSpan(self._phase, self._since_s, now_s)
        self._phase, self._since_s = phase, now_s
        self._phase_s[span.phase] += now_s - span.begin_s
        self._recent.append(span)
        if self._has_room():
            self.phases.append(span)

    def event(self, event: Event) -> None:
        match event:
            case Submitted(plan=plan):
                num_rows = sum(chunk.num_tokens for chunk in plan.chunks)
                self._submitted[plan.step] = _Submission(self._now(), num_rows, len(plan.chunks))
            case Collected(result=result):
                self._collected(result)
            case _:
                pass

    def figures(self, executor: str, trace: str | None, num_slices: int) -> Figures:
        """When the engine's thread has ended: what it all comes to."""
        self._settle()
        self.phase(self._phase)
        self._divide(self._since_s, None)
        self._ran_until_s = self._since_s
        rows, num_workers, units = self._rows()
        return Figures(
            executor=executor,
            num_workers=num_workers,
            num_steps=self._num_steps,
            num_rows=self._num_rows,
            num_sequences=self._num_sequences,
            elapsed_s=self._since_s - self.start_s,
            idle_s=self._idle_s,
            rows=rows,
            phases={
                phase.value: (self._phase_s[phase], self._alone_s[phase]) for phase in Phase if phase is not Phase.WAIT
            },
            units=units,
            overhead=None if self._work is None else Overhead.of(self._costs),
            trace=trace,
            num_slices=num_slices,
            trace_ends_s=None if self.ends_s is None else self.ends_s - self.start_s,
        )

    def _rows(self) -> tuple[dict[str, float], int, Units | None]:
        if self._work is None:
            return {UNTOLD: self._ran_s, **self._between_s}, 1, None
        totals, workers = self._work.totals(), self._work.num_workers
        kinds = sorted(totals.kernel_s.items(), key=lambda kind: -kind[1])
        rows = {name: seconds / workers for name, seconds in kinds}
        rows[RUNTIME] = totals.runtime_s / workers
        # Also the few nanoseconds that a claim takes. Never below 0 by more than two clocks' roundings.
        rows[WAITING] = max(self._ran_s - sum(rows.values()), 0.0)
        units = Units(totals.num_units, totals.num_stalls, totals.stalled_s, totals.longest_unit_s, totals.num_lost)
        return {**rows, **self._between_s}, workers, units

    def _collected(self, result: StepResult) -> None:
        submission = self._submitted.pop(result.step)
        self._num_steps += 1
        self._num_rows += submission.num_rows
        self._num_sequences += submission.num_sequences
        gap_s = self._divide(result.start_s, submission)
        self._ran_s += max(result.end_s - max(result.start_s, self._ran_until_s), 0.0)
        self._ran_until_s = max(self._ran_until_s, result.end_s)
        self._collected_s = self._now()
        while self._recent and self._recent[0].end_s <= self._ran_until_s:
            self._recent.popleft()
        if self._has_room():
            span = StepSpan(
                result.step,
                result.lane,
                result.start_s,
                result.end_s,
                submission.num_rows,
                submission.num_sequences,
                result.status.value,
            )
            self.steps.append(span)
        if self._work is not None:
            other_s = gap_s + result.end_s - result.start_s
            self._unsettled.append(_Unsettled(result.step, other_s, submission.num_sequences))
            if self._work.is_due or len(self._unsettled) >= MOST_UNSETTLED:
                phase = self._phase
                self.phase(Phase.PROFILE)
                self._settle()
                self.phase(phase)

    def _settle(self) -> None:
        if self._work is None:
            return
        self._settled |= self._work.settle()
        for one in self._unsettled:
            covered_s = self._settled.pop(one.step).covered_s
            self._costs.append(StepCost(max(one.other_s - covered_s, 0.0), one.num_sequences))
        self._unsettled.clear()

    def _divide(self, until_s: float, submission: _Submission | None) -> float:
        """Say what the time from the last step's end to `until_s` was spent on, where a step that was submitted then
        began; None: the run ended. Returns the seconds that were not idle.
        """
        from_s = self._ran_until_s
        submitted_s = until_s if submission is None else min(max(submission.at_s, from_s), until_s)
        starting = TAKING_UP if submission is not None and submission.at_s <= from_s else WAKING_WORKERS
        started_s = max(until_s - max(submitted_s, from_s), 0.0)
        self._between_s[starting] += started_s
        spent_s = started_s
        for phase, begin_s, end_s in self._spans():
            begin_s, end_s = max(begin_s, from_s), min(end_s, submitted_s)
            if begin_s >= end_s:
                continue
            if phase is Phase.WAIT:
                told_s = min(max(self._collected_s, begin_s), end_s)
                self._between_s[WAKING_PYTHON] += told_s - begin_s
                self._idle_s += end_s - told_s
                spent_s += told_s - begin_s
            else:
                self._alone_s[phase] += end_s - begin_s
                self._between_s[PYTHON] += end_s - begin_s
                spent_s += end_s - begin_s
        return spent_s

    def _spans(self) -> Iterator[PhaseSpan]:
        yield from self._recent
        yield PhaseSpan(self._phase, self._since_s, self._now())

    def _has_room(self) -> bool:
        if self.ends_s is None:
            is_full = self._work is not None and self._work.is_full
            if is_full or len(self.phases) >= MOST_PHASES or len(self.steps) >= MOST_PHASES:
                self.ends_s = self._now()
        return self.ends_s is None
