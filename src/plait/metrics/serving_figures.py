"""Serving figures: what a running server has done and is doing, for dashboards.

Owns the counters and histograms behind `/metrics`; an `EventSink` that the engine's thread calls. Knows no page format.
Invariants: counters never go down; time to first token has one value for every sequence that gave a token, time between
tokens one for every further token; a sequence that ended, however it ended, is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plait.core.decision import Assign, Blocked, Resume, Suspend
from plait.core.events import (
    Applied,
    Arrived,
    Collected,
    Emitted,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
    Started,
    Submitted,
)
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import FinishReason
from plait.core.step import DRAFT_PROGRAM
from plait.metrics.drafts import DraftFigures
from plait.metrics.histogram import Histogram
from plait.metrics.limit import WorkDone
from plait.metrics.slo_figures import SloFigures

# Those of vLLM's dashboards.
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(slots=True)
class LaneFigures:
    """Steps that ended on one lane, and what they took. `workers`: those that the last one had; `units`: of the device
    that the lane has now, whether it has a step or not; 0 while it is suspended.
    """

    steps: int = 0
    busy_s: float = 0.0
    workers: int = 0
    units: int = 0
    is_suspended: bool = False
    _unit_s: float = 0.0
    _since_s: float = 0.0

    def unit_s(self, now_s: float) -> float:
        """Units that it had, times the seconds for which it had them."""
        return self._unit_s + self.units * max(0.0, now_s - self._since_s)

    def have(self, units: int, now_s: float) -> None:
        self._unit_s, self._since_s, self.units = self.unit_s(now_s), now_s, units


@dataclass(slots=True)
class ServingFigures:
    """`Emitted` events of a step come at one moment, so a step costs one look at the clock for all."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    preemptions: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    refused: dict[str, int] = field(default_factory=dict)
    num_running: int = 0
    num_waiting: int = 0
    waiting_for: Blocked | None = None
    busy_s: float = 0.0
    steps: int = 0
    steps_short_of_memory: int = 0
    steps_short_of_rows: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_S))
    end_to_end: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    queue: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    prefill: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    decode: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    inference: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    prompt_length: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    output_length: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS))
    preemptions_each: Histogram = field(default_factory=lambda: Histogram((0, 1, 2, 5, 10, 20)))
    num_drafts: int = 0
    """Chunks that had draft tokens."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Draft tokens that were right: each saved its sequence a step."""
    accepted_by_place: list[int] = field(default_factory=list)
    draft_model_steps: int = 0
    """That were collected. They are no part of `steps`, nor their time of `busy_s`."""
    draft_model_s: float = 0.0
    lanes: dict[LaneId, LaneFigures] = field(default_factory=dict)
    """Those that had a step or units."""
    share_units: int = 0
    """Of the device."""
    share_changes: int = 0
    slos: SloFigures = field(default_factory=SloFigures)
    _arrived_s: dict[SeqId, float] = field(default_factory=dict)
    _num_prompt: dict[SeqId, int] = field(default_factory=dict)
    """Of those that were not scheduled yet."""
    _last_s: dict[SeqId, float] = field(default_factory=dict)
    _draft_steps: set[StepId] = field(default_factory=set)
    """Of a draft model, in flight."""
    _shares: dict[LaneId, int] = field(default_factory=dict)
    """Units that lanes were given, suspended ones too."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Emitted):  # most are
            self._emitted(event)
            return
        take = _TAKE.get(type(event))
        if take is not None:
            take(self, event)

    def work_done(self, at_s: float) -> WorkDone:
        return WorkDone(at_s, self.steps, self.busy_s, self.steps_short_of_memory, self.steps_short_of_rows)

    @property
    def drafts(self) -> DraftFigures:
        return DraftFigures(self.num_drafts, self.draft_tokens, self.accepted_tokens)

    def _emitted(self, event: Emitted) -> None:
        self.generation_tokens += event.num_tokens
        self.slos.emitted(event)
        before = self._last_s.get(event.seq)
        self._last_s[event.seq] = event.at_s
        if before is None:
            arrived = self._arrived_s.get(event.seq)
            if arrived is not None:
                self.first_token.add(event.at_s - arrived)
            more = event.num_tokens - 1
            if more:
                self.between_tokens.add(0.0, more)
            return
        # Several tokens of one step came together: one gap, and none between them.
        self.between_tokens.add(event.at_s - before)
        if event.num_tokens > 1:
            self.between_tokens.add(0.0, event.num_tokens - 1)

    def _arrived(self, event: Event) -> None:
        assert isinstance(event, Arrived)
        self._arrived_s[event.seq] = event.at_s
        self._num_prompt[event.seq] = event.num_prompt
        self.slos.arrived(event)

    def _scheduled(self, event: Event) -> None:
        assert isinstance(event, Scheduled)
        # Asked and found are counted at one moment, so that no look at them finds more found than asked.
        num_prompt = self._num_prompt.pop(event.seq, 0)
        self.prompt_tokens += num_prompt
        self.queried_tokens += num_prompt
        self.cached_tokens += event.num_cached

    def _submitted(self, event: Event) -> None:
        assert isinstance(event, Submitted)
        if event.plan.program == DRAFT_PROGRAM:
            self._draft_steps.add(event.plan.step)
            return
        self.steps += 1
        self.num_running, self.num_waiting = event.num_running, event.num_waiting
        self.waiting_for = event.blocked
        self.steps_short_of_memory += event.blocked is Blocked.BY_MEMORY
        self.steps_short_of_rows += event.blocked is Blocked.BY_ROWS
        self.step_tokens.add(sum([chunk.num_tokens for chunk in event.plan.chunks]))
        for chunk in event.plan.chunks:
            if chunk.drafts is not None:
                self.num_drafts += 1
                self.draft_tokens += len(chunk.drafts.ids)

    def _collected(self, event: Event) -> None:
        assert isinstance(event, Collected)
        result = event.result
        if result.step in self._draft_steps:
            self._draft_steps.remove(result.step)
            self.draft_model_steps += 1
            self.draft_model_s += result.end_s - result.start_s
            return
        self.busy_s += result.end_s - result.start_s
        lane = self._lane(result.lane)
        lane.steps += 1
        lane.busy_s += result.end_s - result.start_s
        lane.workers = result.workers
        for one in result.seqs:
            if one.num_accepted:
                self._accepted(one.num_accepted)

    def _accepted(self, num_tokens: int) -> None:
        self.accepted_tokens += num_tokens
        by_place = self.accepted_by_place
        by_place += [0] * (num_tokens - len(by_place))
        for place in range(num_tokens):
            by_place[place] += 1

    def _started(self, event: Event) -> None:
        """Until somebody assigns, an executor's first lane has everything."""
        assert isinstance(event, Started)
        self.share_units = event.info.share_units
        self._give(event.info.lanes[0], self.share_units, event.at_s)

    def _applied(self, event: Event) -> None:
        assert isinstance(event, Applied)
        match event.decision:
            case Assign(shares):
                self.share_changes += 1
                for lane, units in shares.items():
                    self._give(lane, len(units), event.at_s)
            case Suspend(lane) | Resume(lane):
                self._lane(lane).is_suspended = isinstance(event.decision, Suspend)
                self._give(lane, self._shares.get(lane, 0), event.at_s)
            case _:
                pass

    def _give(self, lane: LaneId, units: int, at_s: float) -> None:
        self._shares[lane] = units
        if units or lane in self.lanes:
            figures = self._lane(lane)
            figures.have(0 if figures.is_suspended else units, at_s)

    def _lane(self, lane: LaneId) -> LaneFigures:
        found = self.lanes.get(lane)
        if found is None:
            found = self.lanes[lane] = LaneFigures()
        return found

    def _refused(self, event: Event) -> None:
        assert isinstance(event, Refused)
        self.refused[event.code] = self.refused.get(event.code, 0) + 1

    def _preempted(self, event: Event) -> None:
        self.preemptions += 1

    def _finished(self, event: Event) -> None:
        assert isinstance(event, Finished)
        self._arrived_s.pop(event.seq, None)
        self._num_prompt.pop(event.seq, None)
        self._last_s.pop(event.seq, None)
        self.slos.finished(event)
        self.finished[event.reason] += 1
        self.end_to_end.add(event.at_s - event.arrival_s)
        self.output_length.add(event.num_output)
        self.prompt_length.add(event.num_prompt)
        self.preemptions_each.add(event.num_preemptions)
        if event.scheduled_s is None:
            return
        self.queue.add(event.scheduled_s - event.arrival_s)
        self.inference.add(event.at_s - event.scheduled_s)
        if event.first_token_s is not None:
            self.prefill.add(event.first_token_s - event.scheduled_s)
            self.decode.add(event.at_s - event.first_token_s)


_TAKE: dict[type, Callable[[ServingFigures, Event], None]] = {
    Started: ServingFigures._started,
    Applied: ServingFigures._applied,
    Arrived: ServingFigures._arrived,
    Scheduled: ServingFigures._scheduled,
    Submitted: ServingFigures._submitted,
    Collected: ServingFigures._collected,
    Refused: ServingFigures._refused,
    Preempted: ServingFigures._preempted,
    Finished: ServingFigures._finished,
}
