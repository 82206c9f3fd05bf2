"""Totals: what an engine has done so far, and what kept it from doing more.

Owns the counters behind progress lines and closing summaries. Reads events only; nothing in the engine waits for it.
Invariant: counters never go down.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.decision import Blocked
from plait.core.events import (
    Collected,
    Emitted,
    Event,
    Preempted,
    Scheduled,
    Started,
    Submitted,
)
from plait.core.step import DRAFT_PROGRAM
from plait.metrics.drafts import DraftFigures
from plait.metrics.limit import WorkDone, limit_between


@dataclass(slots=True)
class Totals:
    """An `EventSink`. Time counts from the first event behind the engine's start."""

    first_s: float | None = None
    last_s: float = 0.0
    num_steps: int = 0
    num_preemptions: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    busy_s: float = 0.0
    steps_short_of_memory: int = 0
    steps_short_of_rows: int = 0
    num_drafts: int = 0
    """Chunks that had draft tokens."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Draft tokens that were right: each saved its sequence a step."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            return
        if self.first_s is None:
            self.first_s = event.at_s
        self.last_s = event.at_s
        match event:
            case Emitted():  # most are
                pass
            case Submitted():
                self._submitted(event)
            case Collected(result=result):
                self.busy_s += result.end_s - result.start_s
                self.accepted_tokens += sum([one.num_accepted for one in result.seqs])
            case Scheduled(num_cached=num_cached):
                self.cached_tokens += num_cached
            case Preempted():
                self.num_preemptions += 1
            case _:
                pass

    @property
    def drafts(self) -> DraftFigures:
        return DraftFigures(self.num_drafts, self.draft_tokens, self.accepted_tokens)

    @property
    def elapsed_s(self) -> float:
        return 0.0 if self.first_s is None else self.last_s - self.first_s

    def limit(self) -> str:
        """What kept the engine from being faster, as one sentence."""
        begun = WorkDone(0.0 if self.first_s is None else self.first_s)
        now = WorkDone(self.last_s, self.num_steps, self.busy_s, self.steps_short_of_memory, self.steps_short_of_rows)
        return limit_between(begun, now)

    def _submitted(self, event: Submitted) -> None:
        if event.plan.program == DRAFT_PROGRAM:
            return  # its tokens are nobody's
        self.num_steps += 1
        self.computed_tokens += sum([chunk.num_tokens for chunk in event.plan.chunks])
        for chunk in event.plan.chunks:
            if chunk.drafts is not None:
                self.num_drafts += 1
                self.draft_tokens += len(chunk.drafts.ids)
        self.steps_short_of_rows += event.blocked is Blocked.BY_ROWS
        self.steps_short_of_memory += event.blocked is Blocked.BY_MEMORY
