"""Progress: how far a batch has come, as values for whoever draws them.

Owns the counting of one run. Draws nothing and reads no clock: the time is passed in.
Invariant: lines and tokens never go down, and lines_done + lines_failed counts recorded lines only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.api.answers import Usage
from plait.batch.ledger import Counts
from plait.batch.lengths import Lengths, Outlook
from plait.batch.outcomes import LineOutcome
from plait.batch.pace import Pace, Work, steps_until_all_ended

REPORT_EVERY_S = 0.1
CROWDED = 0.5
"""Of the lines that have begun: the share that gets a token in a step, on average."""
ESTIMATE_FROM = 0.05
"""Share of the expected tokens that must have been computed before the time left is estimated."""


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
    """A line that is being answered: its prompt, output tokens at most, and both so far."""

    limit_tokens: int
    prompt_tokens: int = 0
    emitted_tokens: int = 0
    is_begun: bool = False
    step: int = -1
    """The last one that gave it tokens."""

    @property
    def used(self) -> float:
        """Share of the limit; an embedding has none, and no output."""
        return self.emitted_tokens / self.limit_tokens if self.limit_tokens else 1.0

    def further(self, outlook: Outlook) -> float:
        """Output tokens to come; one that is not finished has at least one."""
        return max(1.0, outlook.further_share(self.used) * self.limit_tokens) if self.limit_tokens else 0.0


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
        self._computed = 0
        self._asked = 0
        """Prompt tokens of lines that have begun; fewer were computed, because some were cached."""
        self._open: dict[OpenLine, None] = {}
        self._num_closed = 0
        self._num_begun = self._rows = 0
        """Lines that are being answered now, and the most that were."""
        self._turns = 0
        """Steps that gave a line tokens, summed up over lines."""
        self._seats = self._taken = 0
        """Lines that had begun when a step gave tokens to some, summed up over steps; and those that it gave any."""
        self._lengths = Lengths()
        self._pace = Pace()
        self._num_twins = 0
        """Lines that wait for others' answers."""
        self.usage = Usage()
        """Tokens of the lines recorded in this run."""
        self.computed = Usage()
        """The same without lines that were told what others were told."""
        self.num_folded = 0
        """Such lines."""

    def now(self) -> float:
        """Seconds by the clock that times are told by."""
        return self._now()

    def opened(self, limit_tokens: int, prompt_tokens: int = 0) -> OpenLine:
        """A line goes to the engine; it will have at most `limit_tokens` output tokens."""
        line = OpenLine(limit_tokens, prompt_tokens)
        self._open[line] = None
        return line

    def emitted(self, line: OpenLine, num_tokens: int, computed_tokens: int = 0) -> None:
        """Output tokens of an open line reached us, and with the first of a prompt that so many of its tokens were
        computed.
        """
        before, num_begun, was_begun = self._pace.step, self._num_begun, line.is_begun
        if not line.is_begun:
            line.is_begun = True
            self._asked += line.prompt_tokens
            self._num_begun += 1
            self._rows = max(self._rows, self._num_begun)
        line.emitted_tokens += num_tokens
        self._emitted += num_tokens
        self._computed += computed_tokens
        self._pace.done(num_tokens + computed_tokens, self._now())
        if self._pace.step != before:
            self._seats += num_begun
        if num_tokens and line.step != self._pace.step:
            line.step = self._pace.step
            self._turns += 1
            self._taken += was_begun
        self._report_if_due()

    def closed(self, line: OpenLine) -> None:
        """The line has its answer, whether or not it is on the disk yet."""
        del self._open[line]
        self._num_closed += 1
        self._num_begun -= line.is_begun
        self._lengths.ended(line.used)

    def waits(self, num_lines: int) -> None:
        """So many lines wait for the answers of others now, and will cost nothing."""
        self._num_twins = num_lines

    def recorded(self, outcomes: Sequence[LineOutcome]) -> None:
        for outcome in outcomes:
            self._failed += outcome.failed
            self._done += not outcome.failed
            self.usage = self.usage.plus(outcome.usage)
            self.num_folded += outcome.is_folded
            if not outcome.is_folded:
                self.computed = self.computed.plus(outcome.usage)
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
        """Steps and tokens still to come at the pace so far: of open lines, and of unread ones as of those seen."""
        if not lines_left:
            return 0.0
        open_lines = list(self._open)
        outlook = self._lengths.outlook([line.used for line in open_lines])
        further = [line.further(outlook) for line in open_lines]
        computed = self._computed / self._asked if self._asked else 1.0
        waiting = sum(line.prompt_tokens for line in open_lines if not line.is_begun) * computed
        # Some lines are refused before they are opened; they were seen all the same.
        num_seen = max(self._num_closed, self._done + self._failed) + len(open_lines)
        num_unread = max(0, lines_left - len(open_lines) - self._num_twins)
        outputs = self._emitted + sum(further)
        seen = self._computed + waiting + outputs
        so_far = self._computed + self._emitted
        to_come = seen - so_far + (seen * num_unread / num_seen if num_seen else 0.0)
        # The first tokens come late, behind all the prompts: what they say about the speed is worth nothing. And as
        # long as hardly anything but prompts was computed, nobody knows what outputs cost.
        expected = outputs * (1 + num_unread / max(num_seen, 1))
        if so_far <= ESTIMATE_FROM * (so_far + to_come) or self._emitted < ESTIMATE_FROM * expected:
            return None
        # Tokens that a step gives to a line.
        a_turn = max(self._emitted / self._turns if self._turns else 1.0, 1.0)
        begun = [tokens / a_turn for line, tokens in zip(open_lines, further, strict=True) if line.is_begun]
        queue, each = num_unread + len(open_lines) - len(begun), outputs / max(num_seen, 1) / a_turn
        # Whole rounds of the rows come first, so that it is known how many are left for the last one.
        num_first = max(0, queue // max(self._rows, 1) - 2) * self._rows
        last = [each * factor for factor in outlook.spread(queue - num_first)]
        steps = steps_until_all_ended(self._rows, begun, num_first * each, last)
        left_s = self._pace.tokens_s(to_come) if self._is_crowded else self._pace.seconds(Work(steps, to_come))
        # Everything came at once: that it took the whole time until then is all there is to go by.
        return to_come * elapsed_s / so_far if left_s is None else left_s

    @property
    def _is_crowded(self) -> bool:
        """Whether a step has room for few of the lines that go on, as beside other work: how long answers are bounds
        nothing then, and how many tokens came in a time is all that is known of the next.
        """
        return self._taken < CROWDED * self._seats

    def report(self) -> None:
        """Report now, due or not: at the beginning and at the end."""
        self._reported_s = self._now()
        self._report(self.progress())

    def _report_if_due(self) -> None:
        if self._now() - self._reported_s >= REPORT_EVERY_S:
            self.report()
