"""Verifying: the drafts of a scheduler that prices steps, from a decision to the end of the step that verified them.

Owns which guesses the next decode step verifies, and what was put at risk by it. How many they are is decided with the
share (`plait.sched.multiplex.drafting`), unless the depth is fixed.
Invariant: guesses are verified behind the tokens that they were made behind, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as AnySequence
from dataclasses import replace

from plait.core.ids import SeqId, StepId
from plait.core.request import Sequence
from plait.core.step import StepPlan, StepResult
from plait.draft.credit import Bet, Credit
from plait.sched.multiplex.decide import CHUNK, Setting, decide
from plait.sched.multiplex.drafting import Offer, Plan, bet_of, decide_with_drafts, least_chance, with_counts
from plait.sched.multiplex.situation import Choice, Situation
from plait.sched.speculation import Drafted, Speculation

_BAR_STEPS = 16
"""Decode steps for which it is known without asking prices how likely drafts must be."""


class Verifying:
    """Of one scheduler; without `speculation` nothing is guessed."""

    def __init__(self, speculation: Speculation | None, setting: Setting) -> None:
        self._speculation = speculation
        self._setting = setting
        self._credit = Credit()
        self._drafted: dict[SeqId, tuple[int, Drafted]] = {}
        """For the next decode step, with the number of tokens that they go behind."""
        self._plan: tuple[Situation, Plan] | None = None
        """Why they are, where prices said so."""
        self._bars: dict[int, tuple[int, float]] = {}
        """By sequences that decode: behind how many steps it was asked how likely drafts must be, and the answer."""
        self._num_sent = 0
        self._bets: dict[StepId, Bet] = {}
        """Of steps in flight."""

    def rests(self, running: AnySequence[Sequence]) -> bool:
        """Whether nobody guesses before the next decode step, so that it may be planned before it is known what comes
        before it.
        """
        speculation = self._speculation
        if speculation is None or not speculation.follows_prices:
            return speculation is None
        if self._bets:
            return False  # behind drafts nobody knows where a sequence goes on
        _, least = self._bars.get(len(running), (0, 0.0))
        return least >= 1.0 or not speculation.is_due(running)

    def decide(self, now: Situation, running: AnySequence[Sequence]) -> Choice:
        """As `plait.sched.multiplex.decide`, and with it which guesses are verified."""
        self._forget()
        speculation = self._speculation
        if speculation is None or not now.decoding:
            return decide(now, self._setting)
        most_rows = self._setting.max_step_tokens - len(now.decoding) - (CHUNK if now.prefill else 0)
        if not speculation.follows_prices:
            if now.is_stepping:
                return decide(now, self._setting)
            return self._decide_fixed(speculation, now, running, most_rows)
        least = self._bar(now, most_rows)
        if now.is_stepping or least >= 1.0 or not speculation.is_due(running):
            return decide(now, self._setting)
        found = speculation.offers(running, lambda chance: chance > least)
        offers = {offer.seq.id: offer for offer in found}
        asked = [Offer(one.seq, offers[one.seq].chances) for one in now.decoding if one.seq in offers]
        plan = decide_with_drafts(now, self._setting, asked, most_rows)
        if plan.depth is None or plan.bet is None or not self._credit.allows(plan.bet):
            return plan.plain
        for seq, count in plan.depth.counts.items():
            self._keep(offers[seq].seq, offers[seq].first(count))
        self._plan = (now, plan)
        return plan.choice

    def _bar(self, now: Situation, most_rows: int) -> float:
        num_rows = len(now.decoding)
        asked_at, least = self._bars.get(num_rows, (-_BAR_STEPS, 0.0))
        # A step in flight may have drafts itself, or somebody who lives no more.
        is_plain = len(now.decode.chunks) == num_rows and all([one.num_tokens == 1 for one in now.decode.chunks])
        if self._num_sent - asked_at >= _BAR_STEPS and is_plain:
            least = least_chance(now, self._setting, most_rows)
            self._bars[num_rows] = (self._num_sent, least)
        return least

    def of(self, seq: Sequence) -> Drafted | None:
        """What the next decode step verifies of a sequence."""
        behind, drafted = self._drafted.get(seq.id, (0, None))
        return drafted if behind == len(seq.tokens) else None

    def num_rows(self, seqs: Iterable[Sequence]) -> int:
        """Of the next decode step of these, all drafts taken."""
        return sum([1 if (drafted := self.of(seq)) is None else 1 + len(drafted.tokens) for seq in seqs])

    def sent(self, plan: StepPlan) -> None:
        """The decode step is on its way. What memory had no room for is not in it, and puts nothing at risk."""
        self.passed()
        counts = {chunk.seq: chunk.num_drafts for chunk in plan.chunks if chunk.num_drafts}
        if self._plan is not None and counts:
            now, its = self._plan
            is_whole = its.depth is not None and its.depth.counts == counts
            bet = its.bet if is_whole else bet_of(now, self._setting, its, counts)
            if bet is not None:
                self._bets[plan.step] = bet
        self._forget()

    def passed(self) -> None:
        """A decode step is on its way, with drafts or without."""
        self._num_sent += 1
        if self._speculation is not None:
            self._speculation.passed()

    def ended(self, result: StepResult) -> None:
        """A step of the lane of decode."""
        num_accepted = sum([one.num_accepted for one in result.seqs])
        self._credit.settle(result.end_s - result.start_s, self._bets.pop(result.step, None), num_accepted)

    def _decide_fixed(
        self, speculation: Speculation, now: Situation, running: AnySequence[Sequence], most_rows: int
    ) -> Choice:
        decoding = {one.seq for one in now.decoding}
        drafted = speculation.choose(running, most_rows, now.prefill is not None)
        found = {seq: one for seq, one in drafted.items() if seq in decoding}
        for seq in running:
            if seq.id in found:
                self._keep(seq, found[seq.id])
        counts = {seq: len(one.tokens) for seq, one in found.items()}
        shape = with_counts(now, counts, has_states=self._setting.has_states)
        return decide(replace(now, decode=shape), self._setting)

    def _keep(self, seq: Sequence, drafted: Drafted) -> None:
        if drafted.tokens:
            self._drafted[seq.id] = (len(seq.tokens), drafted)

    def _forget(self) -> None:
        self._drafted, self._plan = {}, None
