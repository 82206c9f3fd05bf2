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
from plait.core.step import StepResult
from plait.draft.credit import Bet, Credit
from plait.sched.multiplex.decide import CHUNK, Setting, decide
from plait.sched.multiplex.drafting import Offer, decide_with_drafts, with_counts
from plait.sched.multiplex.situation import Choice, Situation
from plait.sched.speculation import Drafted, Speculation


class Verifying:
    """Of one scheduler; without `speculation` nothing is guessed."""

    def __init__(self, speculation: Speculation | None, setting: Setting) -> None:
        self._speculation = speculation
        self._setting = setting
        self._credit = Credit()
        self._drafted: dict[SeqId, tuple[int, Drafted]] = {}
        """For the next decode step, with the number of tokens that they go behind."""
        self._bet: Bet | None = None
        self._bets: dict[StepId, Bet] = {}
        """Of steps in flight."""

    @property
    def drafts(self) -> bool:
        """Whether anybody guesses: then a step is planned when the tokens before it are known."""
        return self._speculation is not None

    def decide(self, now: Situation, running: AnySequence[Sequence]) -> Choice:
        """As `plait.sched.multiplex.decide`, and with it which guesses are verified."""
        self._forget()
        if self._speculation is None or now.is_stepping or not now.decoding:
            return decide(now, self._setting)
        most_rows = self._setting.max_step_tokens - len(now.decoding) - (CHUNK if now.prefill else 0)
        if not self._speculation.follows_prices:
            return self._decide_fixed(self._speculation, now, running, most_rows)
        offers = {offer.seq.id: offer for offer in self._speculation.offers(running)}
        asked = [Offer(one.seq, offers[one.seq].chances) for one in now.decoding if one.seq in offers]
        plan = decide_with_drafts(now, self._setting, asked, most_rows)
        if plan.depth is None or plan.bet is None or not self._credit.allows(plan.bet):
            return plan.plain
        for seq, count in plan.depth.counts.items():
            self._keep(offers[seq].seq, offers[seq].first(count))
        self._bet = plan.bet
        return plan.choice

    def of(self, seq: Sequence) -> Drafted | None:
        """What the next decode step verifies of a sequence."""
        behind, drafted = self._drafted.get(seq.id, (0, None))
        return drafted if behind == len(seq.tokens) else None

    def num_rows(self, seqs: Iterable[Sequence]) -> int:
        """Of the next decode step of these, all drafts taken."""
        return sum([1 if (drafted := self.of(seq)) is None else 1 + len(drafted.tokens) for seq in seqs])

    def sent(self, step: StepId) -> None:
        """The decode step is on its way."""
        if self._bet is not None:
            self._bets[step] = self._bet
        self._forget()

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
        self._drafted, self._bet = {}, None
