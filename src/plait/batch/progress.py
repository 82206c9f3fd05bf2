"""Progress: how far a batch has come, as values for whoever draws them.

Owns the counting of one run. Draws nothing and reads no clock: the time is passed in.
Invariant: lines and tokens never go down, and lines_done + lines_failed counts recorded lines only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.api.answers import Usage
from plait.batch.ledger import Counts
from plait.batch.outcomes import LineOutcome

REPORT_EVERY_S = 0.1
ESTIMATE_FROM = 0.05
"""Share of the expected output tokens that must have come before the time left is estimated."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A moment of a run. Lines count the whole job; tokens, time and speed only this run."""

    lines_total: int
    lines_done: int
    """Answered lines."""
    lines_failed: int
    lines_resumed: int
    """Of the done and failed ones, how many earlier runs recorded."""
    prompt_tokens: int
    """Of finished lines."""
    cached_tokens: int
    output_tokens: int
    """Of finished lines and of those being answered."""
    elapsed_s: float
    output_tokens_per_s: float
    left_s: float | None
    """Estimate; None while too little has come to judge the speed by."""

    @property
    def lines_left(self) -> int:
        return self.lines_total - self.lines_done - self.lines_failed


ProgressSink = Callable[[BatchProgress], None]


@dataclass(slots=True, eq=False)
class OpenLine:
    """A line that is being answered: output tokens so far, and at most."""

    limit_tokens: int
    emitted_tokens: int = 0


class Tally:
    """Counts one run, and reports at most every `REPORT_EVERY_S`."""

    def __init__(self, lines_total: int, before: Counts, now: Callable[[], float], report: ProgressSink) -> None:
        self._lines_total = lines_total
        self._before = before
        self._now = now
        self._report = report
        self._start_s = self._reported_s = now()
        self._done = 0
        self._failed = 0
        self._emitted = 0
        self._open: dict[OpenLine, None] = {}
        self._num_closed = 0
        self._closed_tokens = 0
        self._closed_limits = 0
        self.usage = Usage()
        """Tokens of the lines recorded in this run."""

    def opened(self, limit_tokens: int) -> OpenLine:
        """A line goes to the engine; it will have at most `limit_tokens` output tokens."""
        line = OpenLine(max(1, limit_tokens))
        self._open[line] = None
        return line

    def emitted(self, line: OpenLine, num_tokens: int) -> None:
        """Output tokens of an open line reached us."""
        line.emitted_tokens += num_tokens
        self._emitted += num_tokens
        self._report_if_due()

    def closed(self, line: OpenLine) -> None:
        """The line has its answer, whether or not it is on the disk yet."""
        del self._open[line]
        self._num_closed += 1
        self._closed_tokens += line.emitted_tokens
        self._closed_limits += line.limit_tokens

    def recorded(self, outcomes: Sequence[LineOutcome]) -> None:
        for outcome in outcomes:
            self._failed += outcome.failed
            self._done += not outcome.failed
            self.usage = self.usage.plus(outcome.usage)
        self._report_if_due()

    def progress(self) -> BatchProgress:
        elapsed_s = self._now() - self._start_s
        finished = self._done + self._failed
        left = self._lines_total - self._before.recorded - finished
        return BatchProgress(
            lines_total=self._lines_total,
            lines_done=self._before.done + self._done,
            lines_failed=self._before.failed + self._failed,
            lines_resumed=self._before.recorded,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            output_tokens=self._emitted,
            elapsed_s=elapsed_s,
            output_tokens_per_s=self._emitted / elapsed_s if elapsed_s > 0 else 0.0,
            left_s=self._left_s(left, elapsed_s),
        )

    def _left_s(self, lines_left: int, elapsed_s: float) -> float | None:
        """Output tokens still to come, at the speed so far.

        Open lines are judged by their own limits and by how much of theirs the answered ones used: short answers come
        first, so that their mean alone would promise too early an end.
        """
        if not lines_left:
            return 0.0
        if not self._emitted:
            return None
        used = self._closed_tokens / self._closed_limits if self._closed_limits else 1.0
        of_open = sum(max(1.0, used * line.limit_tokens - line.emitted_tokens) for line in self._open)
        num_seen = self._num_closed + len(self._open)
        per_line = (self._emitted + of_open) / num_seen if num_seen else 0.0
        unread = max(0, lines_left - len(self._open))
        to_come = of_open + unread * per_line
        # The first tokens come late, behind all the prompts: what they say about the speed is worth nothing.
        if self._emitted < ESTIMATE_FROM * (self._emitted + to_come):
            return None
        return to_come * elapsed_s / self._emitted

    def report(self) -> None:
        """Report now, due or not: at the beginning and at the end."""
        self._reported_s = self._now()
        self._report(self.progress())

    def _report_if_due(self) -> None:
        if self._now() - self._reported_s >= REPORT_EVERY_S:
            self.report()
