"""Drafting: how many guesses a decode step verifies, decided together with the share that it runs on.

Owns the search over depths, and what a choice is worth. Forms and shares are `plait.sched.multiplex.decide`'s, which is
asked anew for every depth. Pure.
Invariant: rows are priced, not sequences; a depth is taken only if decode holds its targets though no guess is right.

    worth = prompt tokens/s * T_prompts / n + decode tokens/s * T_decode / b

Seconds of work by second: both T are what the work takes alone on all units, without drafts. A step of b sequences and
d drafts, of which E are expected to be right, brings b + E tokens at the price of b + d rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plait.core.ids import SeqId
from plait.core.step import ChunkShape, StepShape
from plait.draft.credit import Bet
from plait.draft.depth import LEAST_CHANCE, LEAST_SHARE
from plait.sched.multiplex.decide import Setting, decide
from plait.sched.multiplex.pricing import cut
from plait.sched.multiplex.situation import NEVER, Choice, Form, Reason, Situation
from plait.sched.multiplex.targets import due_s

DEAD_BAND = 1.02
"""Drafts must be worth so many times what there is without."""

_STRAINED = frozenset({Reason.MOST_DECODE, Reason.BALANCED, Reason.DELAYED})
"""Targets do not hold, or decode is put off: nothing is added to its step."""

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
    plain = decide(now, setting)
    if now.is_stepping or not now.decoding or plain.form is Form.PREFILL or plain.reason in _STRAINED:
        return Plan(plain, plain)
    prices = _Prices(now, setting)
    plain_worth = prices.worth(plain, now.decode, 0.0)
    best, most = Plan(plain, plain), DEAD_BAND * plain_worth
    open_setting = setting if setting.preset.joins_depth else _narrowed(setting, plain)
    for depth in _candidates(now, prices, _likeliest(offers, most_rows)):
        choice = decide(replace(now, decode=depth.shape), open_setting)
        holds = choice.reason not in _STRAINED and prices.keeps(choice, depth.shape)
        if not holds or not prices.is_fair(plain, choice, depth):
            continue
        base = prices.worth(choice, depth.shape, 0.0)
        found = prices.worth(choice, depth.shape, depth.total)
        if found > most:
            bet = Bet(prices.seconds(choice, depth.shape), plain_worth, base, (found - base) / depth.total)
            best, most = Plan(plain, choice, depth, bet), found
        elif best.depth is not None:
            break
    return best


def with_counts(now: Situation, counts: Counts) -> StepShape:
    """The shape of the decode step with so many drafts of each."""
    chunks = []
    for one, chunk in zip(now.decoding, now.decode.chunks, strict=True):
        drafts = counts.get(one.seq, 0)
        chunks.append(ChunkShape(chunk.start, 1 + drafts, 1 + drafts, 0, drafts) if drafts else chunk)
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
        depth = _depth(now, drafts[:count])
        alone = prices.rate_alone(depth.shape, depth.total)
        if alone > rate:
            rate, found = alone, count
        elif found and count > 2 * found:
            break
    while found:
        yield _depth(now, drafts[:found])
        found //= 2


def _numbers(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count += max(1, count // 2)
    if most:
        yield most


def _depth(now: Situation, drafts: Sequence[tuple[SeqId, float]]) -> Depth:
    counts: dict[SeqId, int] = {}
    expected: dict[SeqId, float] = {}
    for seq, chance in drafts:
        counts[seq] = counts.get(seq, 0) + 1
        expected[seq] = expected.get(seq, 0.0) + chance
    return Depth(counts, expected, with_counts(now, counts))


def _narrowed(setting: Setting, plain: Choice) -> Setting:
    """Where nothing but the plain choice's form and share may be chosen."""
    forms = frozenset({plain.form})
    return replace(setting, preset=replace(setting.preset, forms=forms), shares=(plain.units,))


class _Prices:
    """What choices are worth in one situation."""

    def __init__(self, now: Situation, setting: Setting) -> None:
        self._now = now
        self._preset = setting.preset
        self._prices = setting.prices
        self._rows = len(now.decoding)
        self._token_s = self._prices.decode(now.decode, self._prices.units).expected_s / self._rows
        """Of decode, alone and without drafts."""
        self._due_s = due_s(now.decoding, setting.preset.credit)
        self._free = [one.seq for one in now.decoding if one.itl_s is None and one.tpot_s is None]
        """Those without a target that would keep them from being put off."""

    def rate_alone(self, shape: StepShape, expected: float) -> float:
        return (self._rows + expected) / self._prices.decode(shape, self._prices.units).expected_s

    def seconds(self, choice: Choice, shape: StepShape) -> float:
        """Of the step that begins with a choice."""
        prefill = self._now.prefill
        if choice.form is Form.FUSED and prefill is not None:
            return self._prices.fused(shape, self._chunk(choice)).expected_s
        beside = prefill.shape if choice.form is Form.LANES and prefill is not None else None
        return self._prices.decode(shape, choice.units, beside).expected_s

    def worth(self, choice: Choice, shape: StepShape, expected: float) -> float:
        seconds, prefill = self.seconds(choice, shape), self._now.prefill
        decoded = (self._rows + expected) * self._token_s / seconds
        if prefill is None or choice.form is Form.DECODE:
            return decoded
        whole_s = self._prices.prefill_s(prefill.shape, self._prices.units)
        if choice.form is Form.LANES:
            return decoded + whole_s / self._prices.prefill_s(prefill.shape, self._prices.units - choice.units, shape)
        part = self._chunk(choice).num_tokens / prefill.shape.num_tokens
        return decoded + part * whole_s / seconds

    def keeps(self, choice: Choice, shape: StepShape) -> bool:
        """Whether the decode step ends in time; beside prompts `decide` has seen to it."""
        if self._due_s == NEVER or choice.form in (Form.LANES, Form.FUSED):
            return True
        price = self._prices.decode(shape, choice.units)
        return self._now.now_s + (price.worst_s if self._preset.is_guarded else price.expected_s) <= self._due_s

    def is_fair(self, plain: Choice, choice: Choice, depth: Depth) -> bool:
        """Whether nobody without a target gets much less than without drafts: he waits for others' rows, too."""
        least = 1.0 + min((depth.expected.get(seq, 0.0) for seq in self._free), default=NEVER)
        return least * self.seconds(plain, self._now.decode) >= LEAST_SHARE * self.seconds(choice, depth.shape)

    def _chunk(self, choice: Choice) -> StepShape:
        """Prompt tokens of a fused step."""
        prefill = self._now.prefill
        assert prefill is not None
        return cut((*prefill.prompts, *self._now.waiting), choice.chunk_tokens)
