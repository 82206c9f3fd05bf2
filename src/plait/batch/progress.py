"""Progress: how far a batch has come, as values for whoever draws them.

Owns the counting of one run. Draws nothing and reads no clock: the time is passed in.
Invariant: lines and tokens never go down, and lines_done + lines_failed counts recorded lines only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.api.answers import Usage
from plait.batch.ledger import Counts
from plait.batch.lengths import LengthsByLimit, Outlook
from plait.batch.outcomes import LineOutcome
from plait.batch.pace import Pace, Work, steps_until_all_ended
from plait.batch.planned import Planned
from plait.sched.colocation.idle import OnlineTime

REPORT_EVERY_S = 0.1
CROWDED = 0.5
"""Of the lines that have begun: the share that gets a token in a step, on average."""
ESTIMATE_FROM = 0.05
"""Share of the expected tokens that must have been computed before the time left is estimated."""
LEAST_IDLE = 0.02
"""Of the time: what online traffic is taken to leave to a batch at least."""


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
    is_known: bool = False
    """It says as much as it may."""
    emitted_tokens: int = 0
    told_tokens: int = 0
    """Of earlier tries: so many of its tokens were counted as output."""
    is_begun: bool = False
    step: int = -1
    """The last one that gave it tokens."""

    @property
    def used(self) -> float:
        """Share of the limit; an embedding has none, and no output."""
        return self.emitted_tokens / self.limit_tokens if self.limit_tokens else 1.0

    def further(self, outlook: Callable[[int], Outlook]) -> float:
        """Output tokens to come, by what is known of its limit; one that is not finished has at least one."""
        if not self.limit_tokens:
            return 0.0
        if self.is_known:
            return float(max(1, self.limit_tokens - self.emitted_tokens))
        return max(1.0, outlook(self.limit_tokens).further_share(self.used) * self.limit_tokens)


@dataclass(frozen=True, slots=True)
class _ToCome:
    """Tokens, and how long answers are in steps: those that go on, and those that have no row yet, summed up and one by
    one for the last of them.
    """

    prompt_tokens: float
    output_tokens: float
    begun: Sequence[float]
    waiting: float
    last: Sequence[float]

    @property
    def tokens(self) -> float:
        return self.prompt_tokens + self.output_tokens


class Tally:
    """Counts one run, and reports at most every `REPORT_EVERY_S`."""

    def __init__(
        self,
        lines_total: int,
        before: Counts,
        now: Callable[[], float],
        report: ProgressSink,
        online: OnlineTime | None = None,
    ) -> None:
        """`online`: what requests beside the batch take of the device, if there may be any."""
        self._lines_total = lines_total
        self._before = before
        self._now = now
        self._report = report
        self._online = online
        self._before_s = 0.0
        """That online requests had taken when the pace began to be measured."""
        self._earlier = (0.0, 0.0)
        """The share that they took by then, and the seconds that it is known of."""
        self._planned: Planned | None = None
        self._opened_known = 0
        self._opened_limits: Counter[int] = Counter()
        """Of the lines that went to the engine, as in `Planned`."""
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
        self._lengths = LengthsByLimit()
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

    def plan(self, planned: Planned) -> None:
        """What all lines that are not recorded yet ask for."""
        self._planned = planned

    def opened(self, limit_tokens: int, prompt_tokens: int = 0, *, is_known: bool = False) -> OpenLine:
        """A line goes to the engine; it will have at most `limit_tokens` output tokens, or as many if that is known."""
        line = OpenLine(limit_tokens, prompt_tokens, is_known)
        self._open[line] = None
        if is_known:
            self._opened_known += limit_tokens
        else:
            self._opened_limits[limit_tokens] += 1
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
        self._emitted += max(0, min(num_tokens, line.emitted_tokens - line.told_tokens))
        self._computed += computed_tokens
        since_s, now = self._pace.since_s, self._now()
        self._pace.done(num_tokens + computed_tokens, now, computed_tokens)
        if self._online is not None and self._pace.since_s != since_s:
            self._before_s, self._earlier = self._online.total_s, self._online.lately(now)
        if self._pace.step != before:
            self._seats += num_begun
        if num_tokens and line.step != self._pace.step:
            line.step = self._pace.step
            self._turns += 1
            self._taken += was_begun
        self._report_if_due()

    def begins_again(self, line: OpenLine) -> None:
        """The engine gave it up, so that it is asked once more. What it said counts once."""
        line.told_tokens = max(line.told_tokens, line.emitted_tokens)
        line.emitted_tokens = 0
        self._num_begun -= line.is_begun
        line.is_begun = False

    def closed(self, line: OpenLine) -> None:
        """The line has its answer, whether or not it is on the disk yet."""
        del self._open[line]
        self._num_closed += 1
        self._num_begun -= line.is_begun
        if not line.is_known:
            self._lengths.ended(line.used, line.limit_tokens)

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
        """Steps and tokens still to come at the pace so far, beside as much online traffic as is known of."""
        if not lines_left:
            return 0.0
        ahead = self._ahead(lines_left)
        so_far, outputs = self._computed + self._emitted, self._emitted + ahead.output_tokens
        knows_costs = self._planned is not None and self._planned.costs is not None
        # The first tokens come late, behind all the prompts: what they say about the speed is worth nothing. And as
        # long as hardly anything but prompts was computed, nobody knows what outputs cost who has no prices.
        if so_far <= ESTIMATE_FROM * (so_far + ahead.tokens):
            return None
        if not knows_costs and self._emitted < ESTIMATE_FROM * outputs:
            return None
        left_s = self._at_pace(ahead)
        # Everything came at once: that it took the whole time until then is all there is to go by.
        return ahead.tokens * elapsed_s / so_far if left_s is None else left_s * self._online_factor()

    def _at_pace(self, ahead: _ToCome) -> float | None:
        planned = self._planned
        rows = max(self._rows, 0 if planned is None else planned.rows)
        steps = steps_until_all_ended(rows, ahead.begun, ahead.waiting, ahead.last)
        if planned is not None and planned.costs is not None:
            done = self._pace.measured[0]
            if self._is_crowded or (self._online is not None and self._online.total_s > self._before_s):
                # Online traffic bounds what steps hold, before answers do, so that they will hold as much as they did.
                steps = max(0.0 if self._is_crowded else steps, done.steps * ahead.tokens / max(done.tokens, 1))
            return self._pace.priced(Work(steps, ahead.tokens, ahead.prompt_tokens), planned.costs)
        if self._is_crowded:
            return self._pace.tokens_s(ahead.tokens)
        return self._pace.seconds(Work(steps, ahead.tokens, ahead.prompt_tokens))

    def _ahead(self, lines_left: int) -> _ToCome:
        """Of open lines, and of unread ones: as planned, or as of those seen."""
        open_lines, planned = list(self._open), self._planned
        outlook = self._lengths.outlooks([(line.used, line.limit_tokens) for line in open_lines if not line.is_known])
        further = [line.further(outlook) for line in open_lines]
        # Some lines are refused before they are opened; they were seen all the same.
        num_seen = max(self._num_closed, self._done + self._failed) + len(open_lines)
        num_unread = max(0, lines_left - len(open_lines) - self._num_twins)
        outputs = self._emitted + sum(further)
        is_computed = self._computed / self._asked if self._asked else 1.0
        waiting = sum(line.prompt_tokens for line in open_lines if not line.is_begun) * is_computed
        if planned is None:
            unread = num_unread / num_seen if num_seen else 0.0
            prompts_left = waiting + (self._computed + waiting) * unread
            each = outputs / max(num_seen, 1)
        else:
            unread_tokens = float(max(0, planned.known_tokens - self._opened_known))
            for limit, count in planned.limits.items():
                num_left = max(0, count - self._opened_limits[limit])
                unread_tokens += num_left * limit * outlook(limit).further_share(0.0) if num_left else 0.0
            each = unread_tokens / num_unread if num_unread else 0.0
            if planned.computed_tokens is None:
                prompts_left = (planned.prompt_tokens - self._asked) * is_computed
            else:
                prompts_left = max(0.0, planned.computed_tokens - self._computed)
        # Tokens that a step gives to a line.
        a_turn = max(self._emitted / self._turns if self._turns else 1.0, 1.0)
        begun = [tokens / a_turn for line, tokens in zip(open_lines, further, strict=True) if line.is_begun]
        if planned is not None:
            # Who waits for a row is no more like the others than who goes on.
            last = [tokens / a_turn for line, tokens in zip(open_lines, further, strict=True) if not line.is_begun]
            return _ToCome(prompts_left, sum(further) + each * num_unread, begun, num_unread * each / a_turn, last)
        queue = num_unread + len(open_lines) - len(begun)
        # Whole rounds of the rows come first, so that it is known how many are left for the last one.
        num_first = max(0, queue // max(self._rows, 1) - 2) * self._rows
        last = [each / a_turn * factor for factor in outlook(0).spread(queue - num_first)]
        return _ToCome(prompts_left, sum(further) + each * num_unread, begun, num_first * each / a_turn, last)

    def _online_factor(self) -> float:
        """By how much online traffic slows what is to come, beside what it did so far. A batch of minutes sees few of
        those requests, so that what came before it counts as what came beside it.
        """
        if self._online is None:
            return 1.0
        seconds = self._now() - self._pace.since_s
        share, earlier_s = self._earlier
        busy_s = self._online.total_s - self._before_s
        if seconds <= 0:
            return 1.0
        expected = (busy_s + share * earlier_s) / (seconds + earlier_s)
        return max(LEAST_IDLE, 1 - busy_s / seconds) / max(LEAST_IDLE, 1 - expected)

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
