"""Depth: how many drafts of which sequences are worth verifying in a step.

Owns the choice and its price: tokens that the step is expected to give, by the seconds that it takes, against the same
step without drafts. Beyond the rows that a machine computes for nothing a verified token costs about as much as a
decoded one, so depth follows the batch by itself and is 0 when drafts would lose (docs/concepts/speculation.md).
Invariant: what drafts cost more than they brought is at most `LOSS_SHARE` of the time in which steps ran, and
`FIRST_CREDIT_STEPS` steps, whatever the drafter says and however wrong the prices are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from plait.draft.step_times import StepTimes

MOST_DRAFTS = 16
"""Of a sequence in a step. Even certain ones bring little more than half as many in each of twice as many steps."""

MOST_DRAFT_ROWS = 64
"""Of all sequences in a step."""

NO_LIMIT = float("inf")

LOSS_SHARE = 0.005
FIRST_CREDIT_STEPS = 4.0
MOST_CREDIT_STEPS = 16.0
"""What was won before is not all put at risk again."""

LEAST_SHARE = 0.95
"""Of the tokens per second that it has without, what every sequence keeps at least, one without drafts too."""

_MOST_OVER = 3.0
"""Times the price that a step is booked with at most."""

LEAST_CHANCE = 0.05
"""What is less likely is worth no row anywhere."""

_DEAD_BAND = 1.03
"""A plan with drafts must promise so many times the tokens per second of one without."""

_BAR_STEPS = 16
"""For how many steps it is known without looking how likely drafts must be."""

_NEWEST_SHARE = 0.15
_WAIT_STEPS = 512
"""Steps without a wait after which the last ones are no longer believed."""

_FIRST_WAIT_SHARE = 0.1
"""Of a step of one row: what it is taken to cost that a step cannot be planned while another runs."""


class NextStep(NamedTuple):
    """That drafts might go into: so many sequences that decode."""

    num_sequences: int
    most_rows: int = MOST_DRAFT_ROWS
    """Drafts of all of them at most."""
    within_s: float = NO_LIMIT
    """When the next token must be there although no draft was right."""
    waits_anyway: bool = False
    """Without drafts nothing could be planned ahead either."""


class Made(NamedTuple):
    """A step that was collected: one row a sequence, and drafts."""

    num_sequences: int
    num_drafts: int
    num_accepted: int
    seconds: float
    """From its first op to its last."""
    waited_s: float | None = None
    """How long the device had nothing to do before it, because nothing could be planned behind the step before. None:
    it was planned ahead, nobody had anything to do, or it would have waited without drafts too.
    """
    waited_for_drafts: bool = False
    """Without drafts the step would have been planned ahead."""
    num_rows_beside: int | None = None
    """Rows of prompts that it computed, too; 0 if there were none and somebody was cancelled or failed. None: it did
    nothing else, so `seconds` are what its rows take.
    """
    guess_s: float = 0.0
    """What steps of a draft model took since the step before; no part of `waited_s`."""


@dataclass(frozen=True, slots=True)
class AskedRound:
    """What a draft model could guess before the next step."""

    rates: Sequence[float]
    """Of each sequence that may be guessed for: how often a guess is right, if those before it were."""
    most: Sequence[int]
    """Tokens that each of them can take."""
    num_behind: int
    """Tokens of all of them that the draft model must compute first."""
    num_expected: float
    """Tokens that are still to come of those whom that is for: it is done once for all of them."""
    seconds: Callable[[int, float], float]
    """Of a draft model's step of so many rows, given what the target takes for as many."""
    most_step_rows: int
    """Of one step of the draft model."""


class Depth(Protocol):
    """What decides how much is verified."""

    @property
    def most(self) -> int:
        """Drafts of one sequence in a step."""

    @property
    def beside_prompts(self) -> bool:
        """Whether steps that compute prompts, too, may have drafts."""

    @property
    def follows_prices(self) -> bool:
        """Whether a policy with prices of steps chooses instead (`plait.sched.multiplex.drafting`)."""

    def may_pay(self, step: NextStep, reached: float = 1.0, chance: float = 1.0) -> bool:
        """Whether drafts could be worth anything if their first is reached with chance `reached` and is then right with
        `chance`, and none is likelier; where not, nobody need guess. Takes no time.
        """

    def may_wait(self, step: NextStep, reached: Sequence[float], chances: Sequence[Sequence[float]]) -> bool:
        """Whether the step is better planned when a token that is still to come is known. `reached[i]`: the chance that
        it is the one that guess i is made behind; else nothing of the guess is verified. The rest is as in `choose`.
        """

    def choose(self, step: NextStep, chances: Sequence[Sequence[float]]) -> list[int]:
        """How many drafts of each guess are verified. `chances[i][k]`: that drafts 0 to k of guess i are all right."""

    def choose_round(self, step: NextStep, asked: AskedRound) -> int:
        """How many tokens a draft model guesses for everybody; 0: it is better not asked."""

    def note(self, made: Made) -> None:
        """A step ended that had no prompts, or had drafts or waited for some."""

    def note_plain(self, num_sequences: int, seconds: Sequence[float]) -> None:
        """As `note` of steps that were planned ahead and had one row of each sequence and nothing else, in order."""


@dataclass(frozen=True, slots=True)
class FixedDepth:
    """Everything that was guessed, up to a number, at any price: for tests and measurements."""

    most: int = MOST_DRAFTS
    beside_prompts: bool = True
    follows_prices: bool = False

    def may_pay(self, step: NextStep, reached: float = 1.0, chance: float = 1.0) -> bool:
        return True

    def may_wait(self, step: NextStep, reached: Sequence[float], chances: Sequence[Sequence[float]]) -> bool:
        return any(self.choose(step, chances))

    def choose(self, step: NextStep, chances: Sequence[Sequence[float]]) -> list[int]:
        depths, left = [], step.most_rows
        for one in chances:
            depths.append(min(len(one), self.most, left))
            left -= depths[-1]
        return depths

    def choose_round(self, step: NextStep, asked: AskedRound) -> int:
        return min(self.most, max(asked.most, default=0)) if step.most_rows > 0 else 0

    def note(self, made: Made) -> None:
        """Nothing is learned."""

    def note_plain(self, num_sequences: int, seconds: Sequence[float]) -> None:
        """Nor of these."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """What drafts must bring to be worth anything, in tokens."""

    made_at: int
    known_rows: int
    """Of the longest step that had been seen then."""
    least: float
    """For waiting for them, and for being better at all."""
    costs: tuple[float, ...]
    """Of the rows of one draft, of two, and so on."""
    least_chance: float
    """Of drafts that are all as likely, where nothing in front of them is unknown."""


class PricedDepth:
    """By price: nothing is drafted before a step without drafts was seen."""

    def __init__(self) -> None:
        self._times = StepTimes()
        self._wait_s: float | None = None
        self._waited_at = 0
        """Which of all noted steps was the last that `_wait_s` was learned from."""
        self._credit_s: float | None = None
        self._num_noted = 0
        self._bars: dict[tuple[int, bool], _Bar] = {}
        """By sequences, and whether a step waits anyway."""

    @property
    def most(self) -> int:
        return MOST_DRAFTS

    @property
    def beside_prompts(self) -> bool:
        # Such a step has more rows than a machine computes for nothing: what is verified there and rejected is lost.
        return False

    @property
    def follows_prices(self) -> bool:
        return True

    @property
    def credit_s(self) -> float:
        """Seconds that may be lost."""
        return self._credit_s or 0.0

    def may_pay(self, step: NextStep, reached: float = 1.0, chance: float = 1.0) -> bool:
        if self._times.is_empty:
            return False
        bar = self._bars.get((step.num_sequences, step.waits_anyway))
        if bar is None or self._num_noted - bar.made_at >= _BAR_STEPS or bar.known_rows < self._times.most_rows:
            bar = self._bars[step.num_sequences, step.waits_anyway] = self._bar(step)
        if chance <= bar.least_chance or reached >= 1.0:
            return chance > bar.least_chance
        least = bar.least / reached if reached else NO_LIMIT
        return any([chance * count - cost > least for count, cost in enumerate(bar.costs, start=1)])

    def _bar(self, step: NextStep) -> _Bar:
        num_sequences, known_rows = step.num_sequences, self._times.most_rows
        most = min(MOST_DRAFTS * num_sequences, MOST_DRAFT_ROWS, self._most_known(num_sequences))
        rate, plain_s = self._plain_rate(num_sequences), self._times.seconds(num_sequences)
        wait_s = 0.0 if step.waits_anyway else self._waiting_s()
        if most < 1 or self._times.seconds(num_sequences + 1) + wait_s - plain_s > self.credit_s:
            return _Bar(self._num_noted, known_rows, NO_LIMIT, (), NO_LIMIT)
        least = rate * (plain_s + wait_s) - num_sequences
        counts = range(num_sequences + 1, num_sequences + most + 1)
        costs = tuple([rate * (self._times.seconds(num_rows) - plain_s) for num_rows in counts])
        least_chance = min([(least + cost) / count for count, cost in enumerate(costs, start=1)])
        return _Bar(self._num_noted, known_rows, least, costs, least_chance)

    def _most_known(self, num_sequences: int) -> int:
        """Drafts. Far beyond what was seen a time is hardly known; step by step it will be."""
        return 2 * self._times.most_rows + 2 - num_sequences

    def may_wait(self, step: NextStep, reached: Sequence[float], chances: Sequence[Sequence[float]]) -> bool:
        depths, num_sequences = self.choose(step, chances), step.num_sequences
        taken = sum(depths)
        if not taken:
            return False
        # What is not reached costs the waiting, and no rows.
        part = sum([chance * depth for chance, depth in zip(reached, depths, strict=True)]) / taken
        each = zip(reached, chances, depths, strict=True)
        expected = sum([reach * sum(one[:depth]) for reach, one, depth in each])
        plain_s = self._times.seconds(num_sequences)
        seconds = plain_s + part * (self._times.seconds(num_sequences + taken) - plain_s) + self._waiting_s()
        return num_sequences + expected > self._plain_rate(num_sequences) * seconds

    def choose(self, step: NextStep, chances: Sequence[Sequence[float]]) -> list[int]:
        depths = [0] * len(chances)
        if self._times.is_empty:
            return depths
        num_sequences, seconds_of, credit_s = step.num_sequences, self._times.seconds, self.credit_s
        most = max(min(step.most_rows, MOST_DRAFT_ROWS, self._most_known(num_sequences)), 0)
        # A draft is never likelier than the one before it, so in this order they come after those they rely on.
        drafts = [
            (-chance, place, which)
            for which, one in enumerate(chances)
            for place, chance in enumerate(one[:most])
            if chance >= LEAST_CHANCE
        ]
        drafts.sort()
        del drafts[most:]
        best, taken, expected = self._plain_rate(num_sequences), 0, 0.0
        of_each, plain_s = [0.0] * len(chances), seconds_of(num_sequences)
        wait_s = 0.0 if step.waits_anyway else self._waiting_s()
        for count, (chance, _, which) in enumerate(drafts, start=1):
            expected -= chance
            of_each[which] -= chance
            seconds = seconds_of(num_sequences + count) + wait_s
            if seconds - plain_s > credit_s:
                break
            rate = (num_sequences + expected) / seconds
            if rate > best and seconds <= step.within_s:
                least = 1.0 + (min(of_each) if len(chances) == num_sequences else 0.0)
                if least * plain_s >= LEAST_SHARE * seconds:
                    best, taken = rate, count
        for _, _, which in drafts[:taken]:
            depths[which] += 1
        return depths

    def choose_round(self, step: NextStep, asked: AskedRound) -> int:
        num_asked, num_sequences = len(asked.rates), step.num_sequences
        if self._times.is_empty or not num_asked:
            return 0
        plain_s, step_s = self._times.seconds(num_sequences), self._draft_s(asked, num_asked)
        # The last token of each is computed in any case; what is more than that is done once.
        behind_s = max(self._draft_s(asked, asked.num_behind + num_asked) - step_s, 0.0) if asked.num_behind else 0.0
        best, taken = self._plain_rate(num_sequences), 0
        expected, num_rows, of_each, chances = 0.0, 0, [0.0] * num_asked, [1.0] * num_asked
        for depth in range(1, min(self.most, max(asked.most)) + 1):
            for place, (rate, most) in enumerate(zip(asked.rates, asked.most, strict=True)):
                if depth <= most:
                    num_rows += 1
                    chances[place] *= rate
                    of_each[place] += chances[place]
                    expected += chances[place]
            if num_rows > min(step.most_rows, MOST_DRAFT_ROWS):
                break
            verify_s = self._times.seconds(num_sequences + num_rows) + self._waiting_s()
            whole_s = verify_s + depth * step_s + behind_s
            if whole_s - plain_s > self.credit_s or whole_s > step.within_s:
                break
            seconds = whole_s - behind_s * (1.0 - min(1.0, (num_asked + expected) / max(asked.num_expected, 1.0)))
            least = 1.0 + (min(of_each) if num_asked == num_sequences else 0.0)
            if (num_sequences + expected) / seconds > best and least * plain_s >= LEAST_SHARE * seconds:
                best, taken = (num_sequences + expected) / seconds, depth
        return taken

    def _draft_s(self, asked: AskedRound, num_rows: int) -> float:
        """Of steps of the draft model that compute so many rows together."""
        num_steps = -(-num_rows // asked.most_step_rows)
        rows = min(num_rows, asked.most_step_rows)
        return num_steps * asked.seconds(rows, self._times.seconds(rows))

    def note(self, made: Made) -> None:
        if made.num_rows_beside is not None:
            self._note_beside(made, made.num_rows_beside)
            return
        self._num_noted += 1
        num_rows = made.num_sequences + made.num_drafts
        # A step that was held up by something else is not held against drafts.
        most_s = made.seconds if self._times.is_empty else _MOST_OVER * self._times.seconds(num_rows)
        self._times.note(num_rows, made.seconds)
        self._note_wait(made.waited_s)
        plain_s = self._times.seconds(made.num_sequences)
        earned_s = made.seconds * LOSS_SHARE
        if made.num_drafts or made.waited_for_drafts or made.guess_s:
            # Without drafts each further token would have taken its sequence's part of a step of its own.
            brought_s = plain_s * (1.0 + made.num_accepted / made.num_sequences)
            earned_s += brought_s - min(made.seconds, most_s) - min(made.waited_s or 0.0, plain_s) - made.guess_s
        first_s = FIRST_CREDIT_STEPS * plain_s if self._credit_s is None else self._credit_s
        self._credit_s = min(first_s + earned_s, MOST_CREDIT_STEPS * plain_s)

    def note_plain(self, num_sequences: int, seconds: Sequence[float]) -> None:
        for one in seconds:
            self._times.note(num_sequences, one)
        self._num_noted += len(seconds)
        self._note_wait(None)
        plain_s = self._times.seconds(num_sequences)
        first_s = FIRST_CREDIT_STEPS * plain_s if self._credit_s is None else self._credit_s
        self._credit_s = min(first_s + LOSS_SHARE * sum(seconds), MOST_CREDIT_STEPS * plain_s)

    def _note_wait(self, waited_s: float | None) -> None:
        if waited_s is not None:
            # A long one was somebody else's work on the engine's processor.
            known, first = self._waiting_s(), self._first_wait_s()
            share = 0.5 if self._wait_s is None else _NEWEST_SHARE
            self._wait_s = known + (min(waited_s, 2.0 * max(known, first)) - known) * share
            self._waited_at = self._num_noted
        elif self._num_noted - self._waited_at > _WAIT_STEPS:
            # Where waiting once took long nobody waits, and nobody would find out that it no longer does.
            self._wait_s, self._waited_at = None, self._num_noted

    def _note_beside(self, made: Made, num_rows_beside: int) -> None:
        """What the drafts of a step took cannot be told from what else it did, so the price of their rows is booked."""
        if self._times.is_empty or self._credit_s is None:
            return
        plain_s = self._times.seconds(made.num_sequences)
        # Behind rows of prompts a row costs no less than behind those of the decodes alone.
        drafts_s = max(
            self._times.seconds(num_rows + made.num_drafts) - self._times.seconds(num_rows)
            for num_rows in (made.num_sequences, made.num_sequences + num_rows_beside)
        )
        brought_s = plain_s * made.num_accepted / made.num_sequences
        earned_s = brought_s - drafts_s - min(made.waited_s or 0.0, plain_s) - made.guess_s
        self._credit_s = min(self._credit_s + earned_s, MOST_CREDIT_STEPS * plain_s)

    def _plain_rate(self, num_sequences: int) -> float:
        """Tokens per second without drafts, and a little more."""
        return _DEAD_BAND * num_sequences / self._times.seconds(num_sequences)

    def _waiting_s(self) -> float:
        return self._first_wait_s() if self._wait_s is None else self._wait_s

    def _first_wait_s(self) -> float:
        return self._times.seconds(1) * _FIRST_WAIT_SHARE
