"""Decide: the one procedure that says what prompts and decode do until the next decision.

Owns the candidates (fused, side by side, one of them alone), which of them hold the targets of decode, and the choice
between those. Presets set what is allowed and preferred (`plait.sched.multiplex.presets`). Pure.
Invariant: equal situations, presets and prices give equal choices; a sequence with a bound on every gap is never put
off on purpose.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from plait.core.step import StepShape
from plait.cost.model import StepPrice
from plait.sched.multiplex.presets import Prefers, Preset
from plait.sched.multiplex.pricing import Prices, cut
from plait.sched.multiplex.situation import NEVER, Choice, Form, Prefill, Prompt, Reason, Situation
from plait.sched.multiplex.targets import due_s, hard_due_s, lateness

TTFT_PART = 0.9
"""Bullet looks at the P90 of waiting requests."""
TILE_ROWS = 128
"""Rows of a product that a block takes (Bullet, section 2.1)."""
CHUNK, FINE_CHUNK = 16, 2
"""Prompt tokens of a fused step are multiples of the first, or below it of the second, but for the last ones."""
LEAST_PART = 0.1
"""Of a decode step, that prompts take beside it where nothing holds its targets: they never stand still."""
_EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same from decision to decision. `shares`: units that decode may have beside a prefill."""

    preset: Preset
    prices: Prices
    shares: tuple[int, ...]
    max_step_tokens: int
    has_states: bool = False
    """Whether a step with drafts copies states behind its rows."""


def decide(now: Situation, setting: Setting) -> Choice:
    """What to do until something happens, or until `Choice.until_s`."""
    units, preset = setting.prices.units, setting.preset
    if now.prefill is None:
        return Choice(Form.DECODE, units, Reason.ALONE)
    if preset.is_fused:
        return _fused(now, now.prefill, setting)
    if not now.decoding:
        return Choice(Form.PREFILL, 0, Reason.ALONE)
    if preset.prefers is Prefers.PROGRESS:
        return _most_progress(now, now.prefill, setting)
    if Form.LANES in preset.forms:
        return _least_decode(now, now.prefill, setting)
    return _slice(now, now.prefill, setting)


def _least_decode(now: Situation, prefill: Prefill, setting: Setting) -> Choice:
    """MuxWise: the smallest partition whose worst-case step holds the target. Bullet: the fewest units for its P90."""
    preset, prices = setting.preset, setting.prices
    if not preset.is_partitioned:
        setting = replace(setting, shares=(_units_by_blocks(now, prefill, prices.units),))
    units = _fewest_units(now, prefill, _dues(now, setting), setting)
    chosen = setting.shares[-1] if units is None else units
    decode_s = prices.decode(now.decode, chosen, prefill.shape).expected_s
    prefill_s = prices.prefill_s(prefill.shape, prices.units - chosen, now.decode)
    are_late = (preset.delays or preset.balances) and _are_late(now, prefill, prefill_s, chosen, setting)
    if preset.delays and are_late and _can_wait(now, decode_s, setting):
        return Choice(Form.PREFILL, 0, Reason.DELAYED, until_s=now.now_s + decode_s)
    reason = Reason.FEASIBLE
    if units is None:
        if preset.balances and are_late:
            return _balanced(now, prefill, setting)
        reason = Reason.MOST_DECODE
    spans = prices.spans_beside(decode_s, prefill_s)
    return _handing_over(now, prefill, Choice(Form.LANES, chosen, reason, num_spans=spans), prefill_s, setting)


def _units_by_blocks(now: Situation, prefill: Prefill, units: int) -> int:
    """Of decode where nobody divides the device: products have as many blocks as tiles of rows, and whose blocks are
    more has as much more of the units.
    """
    decode, prompts = (-(-shape.num_tokens // TILE_ROWS) for shape in (now.decode, prefill.shape))
    return min(units - 1, max(1, round(units * decode / (decode + prompts))))


def _fewest_units(now: Situation, prefill: Prefill, dues: _Dues, setting: Setting) -> int | None:
    """The smallest share of decode that keeps its targets; None: none does. More units never make a step longer, so
    halving finds it.
    """
    place = bisect_left(setting.shares, True, key=lambda units: _keeps(now, prefill, units, dues, setting))
    return setting.shares[place] if place < len(setting.shares) else None


def _handing_over(now: Situation, prefill: Prefill, choice: Choice, prefill_s: float, setting: Setting) -> Choice:
    """Near the end of the last prompt decode gets more, ahead of time; until then, that is when to look again."""
    early = setting.preset.hand_over_spans
    if not early or now.waiting or now.suspended is not None:
        return choice
    until_end = setting.prices.spans_left(prefill) - early
    if until_end > _EXACT * setting.prices.num_spans:
        return replace(choice, until_s=now.now_s + until_end * setting.prices.span_s(prefill_s))
    more = [one for one in setting.shares if one <= choice.units + (setting.prices.units - choice.units) // 2]
    grown = max(choice.units, more[-1] if more else 0)
    return replace(choice, units=grown, reason=Reason.HAND_OVER)


@dataclass(frozen=True, slots=True)
class _Dues:
    """Until when the decode step has to end, and the one after it for those who join then."""

    step_s: float
    next_s: float


def _dues(now: Situation, setting: Setting) -> _Dues:
    credit = setting.preset.credit
    joined_s = hard_due_s(now.joining) if credit.is_mean else due_s(now.joining, credit)
    return _Dues(due_s(now.decoding, credit), joined_s)


def _keeps(now: Situation, prefill: Prefill, units: int, dues: _Dues, setting: Setting) -> bool:
    """Whether the decode step on so many units ends in time, and the one after it for those who join."""
    if dues.step_s == NEVER and dues.next_s == NEVER:
        return True
    end_s = now.now_s + now.decode_left * _bound_s(now, now.decode, units, prefill, setting)
    if end_s > dues.step_s:
        return False
    return dues.next_s == NEVER or end_s + _bound_s(now, now.merged, units, prefill, setting) <= dues.next_s


def _bound_s(now: Situation, shape: StepShape, units: int, prefill: Prefill, setting: Setting) -> float:
    price = setting.prices.decode(shape, units, prefill.shape)
    # How steps go now says nothing about a neighbour that is still to come.
    return max(counted_s(price, Form.LANES, now, setting), price.worst_s if setting.preset.is_guarded else 0.0)


def counted_s(price: StepPrice, form: Form, now: Situation, setting: Setting) -> float:
    """How long a step of decode counts until its end is seen."""
    if not setting.preset.is_guarded:
        return price.expected_s
    if now.paces is None:
        return price.worst_s
    pace = now.paces[form]
    usual_s = pace.factor * price.expected_s
    # What the calibration says of nearly all steps, slow seconds included: who is later than that was held up, and to
    # wait for that as long as it takes leaves prompts less than turns by prices do.
    return min(usual_s + pace.margin_s, max(usual_s, price.worst_s))


def _lasts_s(price: StepPrice, form: Form, now: Situation) -> float:
    """How long a step takes, by which forms are compared: whatever the present is like, it is so under all of them."""
    return price.expected_s if now.paces is None else now.paces[form].usual * price.expected_s


def _prompts_s(seconds: float, now: Situation) -> float:
    """The same of prompts by themselves."""
    return seconds if now.paces is None else now.paces[Form.PREFILL].usual * seconds


def _can_wait(now: Situation, decode_s: float, setting: Setting) -> bool:
    """Whether the means hold if the next step is skipped. A step in flight is not stopped."""
    if now.is_stepping or hard_due_s(now.decoding) != NEVER:
        return False
    return now.now_s + 2 * decode_s <= due_s(now.decoding, setting.preset.credit)


def ends_s(
    now: Situation, prefill: Prefill, prefill_s: float, units: int, setting: Setting
) -> Iterator[tuple[Prompt, float]]:
    """When each prompt would have its token: those of the prefill together, and those that wait one after another. What
    is left of a prompt that is too long for one step comes right behind it.
    """
    end_s = now.now_s + prefill.left * prefill_s
    for rest in prefill.rest():
        end_s += setting.prices.prompt_s(rest, setting.prices.units - units)
    for prompt in prefill.prompts:
        yield prompt, end_s
    if not now.is_prefilling:
        for prompt in now.waiting:
            end_s += setting.prices.prompt_s(prompt, setting.prices.units - units)
            yield prompt, end_s


def _are_late(now: Situation, prefill: Prefill, prefill_s: float, units: int, setting: Setting) -> bool:
    """Bullet's okT: of a prefill in flight everybody must be in time, of what waits P90."""
    ends = [end_s > prompt.due_s for prompt, end_s in ends_s(now, prefill, prefill_s, units, setting)]
    if now.is_prefilling:
        return any(ends)
    return sum(ends) > len(ends) - ceil(TTFT_PART * len(ends) - _EXACT)


def _balanced(now: Situation, prefill: Prefill, setting: Setting) -> Choice:
    """Over capacity: the split under which the worse of both latenesses is least."""
    return Choice(
        Form.LANES,
        min(setting.shares, key=lambda units: _worse_lateness(now, prefill, units, setting)),
        Reason.BALANCED,
    )


def _worse_lateness(now: Situation, prefill: Prefill, units: int, setting: Setting) -> float:
    prices = setting.prices
    end_s = now.now_s + now.decode_left * prices.decode(now.decode, units, prefill.shape).expected_s
    of_decode = lateness(now.decoding, end_s, setting.preset.credit.part)
    prefill_s = prices.prefill_s(prefill.shape, prices.units - units, now.decode)
    of_prompts = sorted(
        (end_s - prompt.arrival_s) / (prompt.due_s - prompt.arrival_s) if prompt.due_s < NEVER else 0.0
        for prompt, end_s in ends_s(now, prefill, prefill_s, units, setting)
    )
    place = len(of_prompts) if now.is_prefilling else ceil(TTFT_PART * len(of_prompts) - _EXACT)
    return max(of_decode, of_prompts[place - 1])


def _slice(now: Situation, prefill: Prefill, setting: Setting) -> Choice:
    """Prompts on all units until decode must go on, then decode on all of them; always until they can be stopped."""
    prices, units = setting.prices, setting.prices.units
    if now.is_stepping:
        return Choice(Form.DECODE, units, Reason.SLICE)
    slack_s = due_s(now.decoding, setting.preset.credit) - now.now_s
    slack_s -= counted_s(prices.decode(now.decode, units), Form.DECODE, now, setting)
    stop_s = prices.stop_s(prices.prefill_s(prefill.shape, units))
    if now.form is Form.PREFILL and slack_s < stop_s:
        return Choice(Form.DECODE, units, Reason.SLICE)
    return Choice(Form.PREFILL, 0, Reason.SLICE, until_s=now.now_s + max(slack_s, stop_s))


def _fused(now: Situation, prefill: Prefill, setting: Setting) -> Choice:
    """One step, with as many prompt tokens as its bound allows: of tokens, or of time."""
    preset, units = setting.preset, setting.prices.units
    most = setting.max_step_tokens - now.decode.num_tokens
    if not preset.is_timed or (preset.chunk_s is None and not now.decoding):
        return Choice(Form.FUSED, units, Reason.UNBOUND, chunk_tokens=max(0, most))
    budget_s = due_s(now.decoding, preset.credit) - now.now_s if preset.chunk_s is None else preset.chunk_s
    if budget_s == NEVER:
        return Choice(Form.FUSED, units, Reason.UNBOUND, chunk_tokens=max(0, most))
    chunk = _longest_chunk(now, prefill, budget_s, most, setting)
    if chunk:
        return Choice(Form.FUSED, units, Reason.FEASIBLE, chunk_tokens=chunk)
    least = min(most, _least_chunk(now, prefill, setting))
    return Choice(Form.FUSED, units, Reason.MOST_DECODE, chunk_tokens=max(0, least))


def _longest_chunk(now: Situation, prefill: Prefill, budget_s: float, most: int, setting: Setting) -> int:
    """Prompt tokens that a fused step of at most `budget_s` has room for; 0: none."""
    prompts = (*prefill.prompts, *now.waiting)
    total = min(most, sum(one.num_tokens for one in prompts))
    if total <= 0:
        return 0

    def seconds(num_tokens: int) -> float:
        price = setting.prices.fused(now.decode, cut(prompts, num_tokens))
        return price.expected_s if setting.preset.chunk_s is not None else counted_s(price, Form.FUSED, now, setting)

    none_s = seconds(0)
    if none_s > budget_s:
        return 0
    few = min(total, CHUNK)
    few_s = seconds(few)
    if few_s > budget_s:
        return FINE_CHUNK * _last_within(
            budget_s, (0, none_s), (-(-few // FINE_CHUNK), few_s), lambda count: seconds(count * FINE_CHUNK)
        )
    longest_s = few_s if total == few else seconds(total)
    if longest_s <= budget_s:
        return total
    return CHUNK * _last_within(
        budget_s, (1, few_s), (-(-total // CHUNK), longest_s), lambda count: seconds(count * CHUNK)
    )


def _least_chunk(now: Situation, prefill: Prefill, setting: Setting) -> int:
    """Prompt tokens where no number holds the targets of decode: those of a few that make a step hardly longer."""
    prompts, chunk = (*prefill.prompts, *now.waiting), CHUNK
    most_s = (1.0 + LEAST_PART) * setting.prices.fused(now.decode, StepShape(())).expected_s
    while chunk > FINE_CHUNK and setting.prices.fused(now.decode, cut(prompts, chunk)).expected_s > most_s:
        chunk //= 2
    return chunk


def _last_within(
    budget_s: float, within: tuple[int, float], beyond: tuple[int, float], seconds: Callable[[int], float]
) -> int:
    """The last count that takes no longer than the budget, between one that does not and one that does, which are given
    with their seconds. More never takes less, and mostly in proportion: where the line through both ends meets the
    budget is a better guess than the middle, but two times out of three only, because the line may be far from the
    curve.
    """
    (low, low_s), (high, high_s), turn = within, beyond, 0
    while high - low > 1:
        turn += 1
        part = 0.5 if turn % 3 == 0 else (budget_s - low_s) / (high_s - low_s)
        middle = min(high - 1, max(low + 1, low + int(part * (high - low))))
        middle_s = seconds(middle)
        if middle_s <= budget_s:
            low, low_s = middle, middle_s
        else:
            high, high_s = middle, middle_s
    return low


def _holds_alone(now: Situation, dues: _Dues, setting: Setting) -> bool:
    """Whether decode holds its targets if prompts rest."""
    step_s = counted_s(setting.prices.decode(now.decode, setting.prices.units), Form.DECODE, now, setting)
    return now.now_s + now.decode_left * step_s <= dues.step_s


@dataclass(frozen=True, slots=True)
class _Option:
    choice: Choice
    rate: float
    """Prompt tokens a second."""


def _most_progress(now: Situation, prefill: Prefill, setting: Setting) -> Choice:
    """Plait: of the forms and shares under which decode holds its targets, the one in which prompts go on fastest,
    unless what there is is hardly slower. With one order of prompts, it is also the one with the fewest late ones.
    """
    units = setting.prices.units
    if now.is_stepping and not now.is_prefilling and now.form is not Form.LANES:
        return Choice(Form.DECODE, units, Reason.KEPT)
    can_fuse = Form.FUSED in setting.preset.forms and not (now.is_stepping or now.is_prefilling or prefill.is_begun)
    dues = _dues(now, setting)
    if dues.step_s == NEVER and can_fuse:
        most = max(0, setting.max_step_tokens - now.decode.num_tokens)
        return Choice(Form.FUSED, units, Reason.UNBOUND, chunk_tokens=most)
    options = list(_options(now, prefill, dues, setting, can_fuse=can_fuse))
    if not options:
        return _without_options(now, prefill, dues, setting, can_fuse=can_fuse)
    best = max(options, key=lambda one: one.rate)
    kept = [one for one in options if _is_present(one.choice, now)]
    if kept and kept[0].rate >= (1.0 - setting.preset.dead_band) * best.rate and kept[0] is not best:
        return replace(kept[0].choice, reason=Reason.KEPT)
    return best.choice


def _without_options(now: Situation, prefill: Prefill, dues: _Dues, setting: Setting, *, can_fuse: bool) -> Choice:
    """Nothing holds the targets of decode beside prompts. Where they are late, too, the least of the worst; where they
    have targets that are not at risk, they rest as long as decode alone is in time; else decode waits for them as
    little as keeps them going.
    """
    preset, prices = setting.preset, setting.prices
    if Form.LANES in preset.forms and preset.balances:
        middle = setting.shares[len(setting.shares) // 2]
        prefill_s = prices.prefill_s(prefill.shape, prices.units - middle, now.decode)
        if Form.PREFILL not in preset.forms or _are_late(now, prefill, prefill_s, middle, setting):
            return _balanced(now, prefill, setting)
        asked = prefill.prompts if now.is_prefilling else (*prefill.prompts, *now.waiting)
        have_targets = all([prompt.due_s < NEVER for prompt in asked])
        if preset.admits_by_time and have_targets and _holds_alone(now, dues, setting):
            return Choice(Form.DECODE, prices.units, Reason.DECODE_FIRST)
    if now.is_stepping:
        return Choice(Form.DECODE, prices.units, Reason.MOST_DECODE)
    if Form.PREFILL not in preset.forms:
        return _fused(now, prefill, setting) if can_fuse else Choice(Form.DECODE, prices.units, Reason.MOST_DECODE)
    stop_s = prices.stop_s(prices.prefill_s(prefill.shape, prices.units))
    least_s = max(stop_s, LEAST_PART * prices.decode(now.decode, prices.units).expected_s)
    return Choice(Form.PREFILL, 0, Reason.STARVED, until_s=now.now_s + least_s)


def _is_present(choice: Choice, now: Situation) -> bool:
    """Whether nothing would change hands for good. Taking turns is one form."""
    if choice.form in (Form.DECODE, Form.PREFILL):
        return now.form in (Form.DECODE, Form.PREFILL)
    return (choice.form, choice.units) == (now.form, now.units)


def _options(now: Situation, prefill: Prefill, dues: _Dues, setting: Setting, *, can_fuse: bool) -> Iterator[_Option]:
    """The candidates that hold the targets of decode, but for those that are slower than another of their form."""
    forms, is_bound = setting.preset.forms, dues.step_s < NEVER
    if can_fuse:
        yield from _fused_option(now, prefill, dues.step_s, setting)
    if Form.LANES in forms:
        middle = setting.shares[len(setting.shares) // 2]
        for units in _shares_tried(now, prefill, dues, setting) if is_bound else (middle,):
            yield _lanes_option(now, prefill, units, setting)
    if Form.PREFILL in forms and is_bound and not now.is_stepping:
        yield from _turn_option(now, prefill, dues.step_s, setting)


def _fused_option(now: Situation, prefill: Prefill, due: float, setting: Setting) -> Iterator[_Option]:
    prices = setting.prices
    chunk = _longest_chunk(now, prefill, due - now.now_s, setting.max_step_tokens - now.decode.num_tokens, setting)
    if chunk:
        price = prices.fused(now.decode, cut((*prefill.prompts, *now.waiting), chunk))
        choice = Choice(Form.FUSED, prices.units, Reason.FEASIBLE, chunk_tokens=chunk)
        yield _Option(choice, chunk / _lasts_s(price, Form.FUSED, now))


def _lanes_option(now: Situation, prefill: Prefill, units: int, setting: Setting) -> _Option:
    prices = setting.prices
    seconds = prices.prefill_s(prefill.shape, prices.units - units, now.decode)
    decode_s = prices.decode(now.decode, units, prefill.shape).expected_s
    choice = Choice(Form.LANES, units, Reason.FEASIBLE, num_spans=prices.spans_beside(decode_s, seconds))
    return _Option(choice, prefill.shape.num_tokens / _prompts_s(seconds, now))


def _turn_option(now: Situation, prefill: Prefill, due: float, setting: Setting) -> Iterator[_Option]:
    """Prompts until decode must go on, or decode when that is now. The rate is that of the whole turn, which began with
    the last token, so that its end looks as good as its beginning.
    """
    prices = setting.prices
    price = prices.decode(now.decode, prices.units)
    step_s = counted_s(price, Form.DECODE, now, setting)
    seconds = prices.prefill_s(prefill.shape, prices.units)
    slack_s, stop_s = due - now.now_s - step_s, prices.stop_s(seconds)
    # Of the whole turn, from the last token on: what is left for prompts, and what decode will take of it.
    prompts_s = max(0.0, due - max(one.last_s for one in now.decoding) - step_s)
    decode_s = price.expected_s if now.paces is None else now.paces[Form.DECODE].factor * price.expected_s
    rate = prompts_s / (prompts_s + decode_s) * prefill.shape.num_tokens / _prompts_s(seconds, now)
    if slack_s >= stop_s:
        yield _Option(Choice(Form.PREFILL, 0, Reason.SLICE, until_s=now.now_s + slack_s), rate)
    elif now.form is Form.PREFILL:
        # However late it is: the turn is over.
        yield _Option(Choice(Form.DECODE, prices.units, Reason.SLICE), rate)


def _shares_tried(now: Situation, prefill: Prefill, dues: _Dues, setting: Setting) -> Sequence[int]:
    """Fewer units of decode make prompts faster, so those above the first that hold need not be priced, but for the
    present one, which the dead band may keep.
    """
    fewest = _fewest_units(now, prefill, dues, setting)
    if fewest is None:
        return ()
    # More units never make a step longer.
    kept = [units for units in setting.shares if units == now.units > fewest]
    return (fewest, *kept)
