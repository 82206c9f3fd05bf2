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
    """Estimate; None while nothing was answered in this run or before."""

    @property
    def lines_left(self) -> int:
        return self.lines_total - self.lines_done - self.lines_failed


ProgressSink = Callable[[BatchProgress], None]


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
        self.usage = Usage()
        """Tokens of the lines recorded in this run."""

    def emitted(self, num_tokens: int) -> None:
        """Output tokens reached us; their line is not finished yet."""
        self._emitted += num_tokens
        self._report_if_due()

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
        """Output tokens still to come, at the speed so far. Lines are no measure: faulty ones take no time at all."""
        num_answered = self._before.done + self._done
        if not num_answered or not self._emitted:
            return 0.0 if not lines_left else None
        tokens_per_line = (self._before.usage.output_tokens + self.usage.output_tokens) / num_answered
        of_open_lines = self._emitted - self.usage.output_tokens
        return max(0.0, lines_left * tokens_per_line - of_open_lines) * elapsed_s / self._emitted

    def report(self) -> None:
        """Report now, due or not: at the beginning and at the end."""
        self._reported_s = self._now()
        self._report(self.progress())

    def _report_if_due(self) -> None:
        if self._now() - self._reported_s >= REPORT_EVERY_S:
            self.report()
