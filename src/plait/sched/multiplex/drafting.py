"""Drafting: how many guesses a decode step verifies, decided together with the share that it runs on.

Owns the search over depths, and what a choice is worth. Forms and shares are `plait.sched.multiplex.decide`'s, which is
asked anew for every depth. Pure.
Invariant: rows are priced, not sequences; a depth is taken only if decode holds its targets though no guess is right,
or if it holds none and everybody's mean is better with it.

    worth = work of decode / (seconds * units of decode / all units)                        side by side
          = work of decode and prompts / seconds                                            one step, or decode alone

Work: the seconds that as many tokens take alone on all units without drafts, so that a plain step alone is worth 1. A
step of b sequences and d drafts, of which E are expected to be right, brings b + E tokens at the price of b + d rows.
Side by side a token's worth is what it leaves to prompts: more units make decode faster and no token cheaper, and who
is done sooner leaves a smaller batch, in which tokens are dearer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plait.core.ids import SeqId
from plait.core.step import ChunkShape, StepShape
from plait.cost.model import StepPrice
from plait.draft.credit import Bet
from plait.draft.depth import LEAST_CHANCE, LEAST_SHARE, MOST_DRAFTS
from plait.sched.multiplex.decide import Setting, decide, ends_s
from plait.sched.multiplex.pricing import cut
from plait.sched.multiplex.situation import NEVER, Choice, Form, Reason, Situation
from plait.sched.multiplex.targets import due_s, hard_due_s

DEAD_BAND = 1.02
"""Drafts must be worth so many times what there is without."""

_LATE = frozenset({Reason.MOST_DECODE, Reason.BALANCED})
"""Nothing that was tried holds the targets of decode."""

_CAUTION = 0.9
"""Of a chance that only some numbers of drafts were asked about."""

Counts = Mapping[SeqId, int]
"""Drafts by sequence; who has none is left out."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Guesses behind the last token of a sequence. `chances[k]`: that guesses 0 to k are all right."""

    seq: SeqId
    chances: Sequence[float]


@dataclass(frozen=True, slots=True)
class Depth:
    """So many of the likeliest guesses."""

    counts: Counts
    expected: Mapping[SeqId, float]
    """Tokens that they bring each."""
    shape: StepShape
    """Of the decode step with them."""

    @property
    def total(self) -> float:
        return sum(self.expected.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """A choice, and the drafts of the decode step that it begins with. `bet`: what they may cost; None without any."""

    plain: Choice
    """The one without drafts."""
    choice: Choice
    depth: Depth | None = None
    bet: Bet | None = None


def decide_with_drafts(now: Situation, setting: Setting, offers: Sequence[Offer], most_rows: int) -> Plan:
    """`most_rows`: drafts at most. Without `Preset.joins_depth` form and share are those without drafts."""
    plain, drafts = decide(now, setting), _likeliest(offers, most_rows)
    best, gain = Plan(plain, plain), 0.0
    if now.is_stepping or not drafts or plain.form is Form.PREFILL or plain.reason is Reason.DELAYED:
        return best
    prices = _Prices(now, setting)
    # Means that do not hold are caught up with by tokens, of everybody, on what decode has; gaps are not.
    is_late = not prices.keeps(plain, now.decode)
    if is_late and hard_due_s(now.decoding) != NEVER:
        return best
    keeps_choice = is_late or not setting.preset.joins_depth
    for depth in _candidates(now, prices, drafts):
        choice = plain if keeps_choice else decide(replace(now, decode=depth.shape), setting)
        if not (is_late or prices.keeps(choice, depth.shape)) or not prices.is_fair(plain, choice, depth, is_late):
            continue
        if prices.num_late(choice, depth.shape) > prices.num_late(plain, now.decode):
            continue
        bet = prices.bet(plain, choice, depth)
        found = (bet.base_worth + bet.token_worth * depth.total) / bet.plain_worth
        if found > max(gain, DEAD_BAND):
            best, gain = Plan(plain, choice, depth, bet), found
        elif best.depth is not None:
            break
    return best


def least_chance(now: Situation, setting: Setting, most_rows: int) -> float:
    """How likely the likeliest draft must be for any number of them to be worth looking at, if none is likelier; 1 or
    more: none is. All are priced behind who has the fewest tokens before him, where they are cheapest.
    """
    prices, rows = _Prices(now, setting), len(now.decoding)
    plain = DEAD_BAND * prices.rate_alone(now.decode, 0.0)
    shortest = min(zip(now.decode.chunks, now.decoding, strict=True), key=lambda one: one[0].start)[1].seq
    least = NEVER
    for count in _some_numbers(min(most_rows, MOST_DRAFTS * rows)):
        shape = with_counts(now, {shortest: count}, has_states=setting.has_states)
        # (rows + chance * count) / seconds must be more than `plain`.
        least = min(least, rows * (plain / prices.rate_alone(shape, 0.0) - 1.0) / count)
    return least if least >= 1.0 else _CAUTION * least


def bet_of(now: Situation, setting: Setting, plan: Plan, counts: Counts) -> Bet:
    """What a plan's decode step puts at risk if it verifies so many drafts."""
    depth = Depth(counts, {}, with_counts(now, counts, has_states=setting.has_states))
    return _Prices(now, setting).bet(plan.plain, plan.choice, depth)


def with_counts(now: Situation, counts: Counts, *, has_states: bool = False) -> StepShape:
    """The shape of the decode step with so many drafts of each; a state is copied behind every row but the last."""
    chunks = []
    for one, chunk in zip(now.decoding, now.decode.chunks, strict=True):
        drafts = counts.get(one.seq, 0)
        chunks.append(ChunkShape.of_verify(chunk.start, drafts, drafts * has_states) if drafts else chunk)
    return StepShape(tuple(chunks))


def _likeliest(offers: Sequence[Offer], most_rows: int) -> list[tuple[SeqId, float]]:
    """Drafts in the order in which they are worth taking. None is likelier than the one before it, so it comes behind
    those that it relies on.
    """
    drafts = [
        (-chance, place, which)
        for which, offer in enumerate(offers)
        for place, chance in enumerate(offer.chances)
        if chance >= LEAST_CHANCE
    ]
    drafts.sort()
    return [(offers[which].seq, -chance) for chance, _, which in drafts[: max(0, most_rows)]]


def _candidates(now: Situation, prices: _Prices, drafts: Sequence[tuple[SeqId, float]]) -> Iterator[Depth]:
    """The depth with the best rate alone on all units, then fewer: rows become dear sooner on a smaller share."""
    rate, found = DEAD_BAND * prices.rate_alone(now.decode, 0.0), 0
    for count in _numbers(len(drafts)):
        depth = prices.depth(drafts[:count])
        alone = prices.rate_alone(depth.shape, depth.total)
        if alone > rate:
            rate, found = alone, count
        elif found and count > 2 * found:
            break
    while found:
        yield prices.depth(drafts[:found])
        found //= 2


def _numbers(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count *= 2
    if most:
        yield most


def _some_numbers(most: int) -> Iterator[int]:
    """Those that candidates may have, near enough: 1, 2, 3, 4, 6, 8, 12 and so on."""
    for count in _numbers(most):
        yield count
        if count > 1 and count * 3 // 2 < most:
            yield count * 3 // 2


def _depth(now: Situation, drafts: Sequence[tuple[SeqId, float]], *, has_states: bool) -> Depth:
    counts: dict[SeqId, int] = {}
    expected: dict[SeqId, float] = {}
    for seq, chance in drafts:
        counts[seq] = counts.get(seq, 0) + 1
        expected[seq] = expected.get(seq, 0.0) + chance
    return Depth(counts, expected, with_counts(now, counts, has_states=has_states))


class _Prices:
    """What choices are worth in one situation."""

    def __init__(self, now: Situation, setting: Setting) -> None:
        self._now = now
        self._setting = setting
        self._preset = setting.preset
        self._prices = setting.prices
        self._rows = len(now.decoding)
        self._token_s = self._prices.decode(now.decode, self._prices.units).expected_s / self._rows
        """Of decode, alone and without drafts."""
        self._due_s = due_s(now.decoding, setting.preset.credit)
        self._free = [one.seq for one in now.decoding if one.itl_s is None and one.tpot_s is None]
        """Those without a target that would keep them from being put off."""

    def depth(self, drafts: Sequence[tuple[SeqId, float]]) -> Depth:
        return _depth(self._now, drafts, has_states=self._setting.has_states)

    def rate_alone(self, shape: StepShape, expected: float) -> float:
        return (self._rows + expected) / self._prices.decode(shape, self._prices.units).expected_s

    def _price(self, choice: Choice, shape: StepShape) -> StepPrice:
        """Of the step that begins with a choice."""
        prefill = self._now.prefill
        if choice.form is Form.FUSED and prefill is not None:
            return self._prices.fused(shape, self._chunk(choice))
        beside = prefill.shape if choice.form is Form.LANES and prefill is not None else None
        return self._prices.decode(shape, choice.units, beside)

    def seconds(self, choice: Choice, shape: StepShape) -> float:
        return self._price(choice, shape).expected_s

    def bet(self, plain: Choice, choice: Choice, depth: Depth) -> Bet:
        # Between forms only the work of the whole device can be compared.
        by_unit = plain.form is choice.form is Form.LANES
        seconds = self.seconds(choice, depth.shape) * (choice.units / self._prices.units if by_unit else 1.0)
        plain_worth = self._worth(plain, self._now.decode, by_unit=by_unit)
        base_worth = self._worth(choice, depth.shape, by_unit=by_unit)
        return Bet(seconds, plain_worth, base_worth, self._token_s / seconds)

    def _worth(self, choice: Choice, shape: StepShape, *, by_unit: bool) -> float:
        """With no guess right."""
        seconds, prefill, units = self.seconds(choice, shape), self._now.prefill, self._prices.units
        decoded = self._rows * self._token_s / seconds
        if by_unit:
            return decoded * units / choice.units
        if prefill is None or choice.form is Form.DECODE:
            return decoded
        whole_s = self._prices.prefill_s(prefill.shape, units)
        if choice.form is Form.LANES:
            return decoded + whole_s / self._prices.prefill_s(prefill.shape, units - choice.units, shape)
        return decoded + self._chunk(choice).num_tokens / prefill.shape.num_tokens * whole_s / seconds

    def keeps(self, choice: Choice, shape: StepShape) -> bool:
        """Whether the decode step goes on at once, and ends in time though no guess is right."""
        if choice.form is Form.PREFILL or choice.reason in _LATE or choice.reason is Reason.DELAYED:
            return False
        if self._due_s == NEVER:
            return True
        price = self._price(choice, shape)
        return self._now.now_s + (price.worst_s if self._preset.is_guarded else price.expected_s) <= self._due_s

    def num_late(self, choice: Choice, shape: StepShape) -> int:
        """Prompts whose first token would come too late, beside such a decode step."""
        prefill = self._now.prefill
        if choice.form is not Form.LANES or prefill is None:
            return 0
        prefill_s = self._prices.prefill_s(prefill.shape, self._prices.units - choice.units, shape)
        ends = ends_s(self._now, prefill, prefill_s, choice.units, self._setting)
        return sum([end_s > prompt.due_s for prompt, end_s in ends])

    def is_fair(self, plain: Choice, choice: Choice, depth: Depth, to_all: bool) -> bool:
        """Whether nobody without a target gets much less than without drafts: he waits for others' rows, too."""
        asked = [one.seq for one in self._now.decoding] if to_all else self._free
        least = 1.0 + min((depth.expected.get(seq, 0.0) for seq in asked), default=NEVER)
        return least * self.seconds(plain, self._now.decode) >= LEAST_SHARE * self.seconds(choice, depth.shape)

    def _chunk(self, choice: Choice) -> StepShape:
        """Prompt tokens of a fused step."""
        prefill = self._now.prefill
        assert prefill is not None
        return cut((*prefill.prompts, *self._now.waiting), choice.chunk_tokens)
