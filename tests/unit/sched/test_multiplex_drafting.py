"""Depth and share together: what is verified follows rows at the share, holds targets though nothing is right, and is
never worth less than what there is without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sched.oracles.stage import ALPHA, DEVICE, FORMATS, PROGRAM

from plait.core.ids import SeqId
from plait.core.step import ChunkShape, StepShape
from plait.cost.model import Bound, StepPrice
from plait.cost.roofline import RooflineModel
from plait.sched.multiplex.decide import Setting, decide
from plait.sched.multiplex.drafting import Offer, decide_with_drafts, least_chance
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import CHUNKED, MUXWISE, PLAIT, Preset, shares_of
from plait.sched.multiplex.pricing import Prices
from plait.sched.multiplex.situation import Decoding, Form, Prefill, Prompt, Reason, Situation

FREE_ROWS = 8
UNITS = 10


class Rows:
    """A millisecond until eight rows on all units, and in proportion beyond; of prompts a microsecond a token. Fewer
    units compute less, and read as fast. A step may last half as long again.
    """

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        prompts = sum(chunk.num_tokens for chunk in shape.chunks if not chunk.is_decode)
        rows = shape.num_tokens - prompts
        decode_s = max(rows / FREE_ROWS * UNITS / share, 1.0) * 1e-3 if rows else 0.0
        seconds = decode_s + prompts * 1e-6 * UNITS / share
        return StepPrice(seconds, 1.5 * seconds, Bound.MEMORY)


def setting(preset: Preset, shares: tuple[int, ...] = (1, 2, 3, 5, 8), max_step_tokens: int = 64) -> Setting:
    return Setting(preset, Prices(Rows(), UNITS, 1), shares, max_step_tokens)


def situation(num: int, *, tokens: int = 0, itl_s: float | None = None, tpot_s: float | None = None) -> Situation:
    """`num` sequences that have just said a token, beside a prompt of so many tokens."""
    decoding = tuple(Decoding(SeqId(at), 1.0, 1.0, 0, itl_s, tpot_s) for at in range(num))
    decode = StepShape(tuple(ChunkShape(100, 1, 1) for _ in range(num)))
    prompt = Prompt(SeqId(99), 0.0, 0, tokens)
    prefill = Prefill((prompt,), StepShape((ChunkShape(0, tokens, 1),))) if tokens else None
    return Situation(1.0, decoding, decode, prefill=prefill)


def offers(num: int, *chances: float) -> list[Offer]:
    return [Offer(SeqId(at), chances) for at in range(num)]


def test_alone_about_as_many_rows_are_taken_as_cost_nothing() -> None:
    plan = decide_with_drafts(situation(1), setting(CHUNKED), offers(1, *[0.9**k for k in range(1, 17)]), 63)
    assert plan.depth is not None
    assert plan.depth.counts == {SeqId(0): 8}
    assert plan.choice == plan.plain == decide(situation(1), setting(CHUNKED))


@pytest.mark.parametrize("chances", [(), (0.04,) * 8])
def test_without_likely_guesses_nothing_changes(chances: tuple[float, ...]) -> None:
    for preset in (CHUNKED, MUXWISE, PLAIT):
        plan = decide_with_drafts(situation(2, tokens=2000), setting(preset), offers(2, *chances), 60)
        assert (plan.depth, plan.choice) == (None, decide(situation(2, tokens=2000), setting(preset)))


def test_where_rows_are_dear_nothing_is_verified() -> None:
    now = situation(FREE_ROWS, tokens=2000, tpot_s=0.02)
    assert decide_with_drafts(now, setting(PLAIT), offers(FREE_ROWS, 0.5, 0.25), 60).depth is None


def test_a_deadline_counts_rows_as_if_no_guess_were_right() -> None:
    """1.5 ms are what the plain step may last at worst. Beyond eight rows a draft makes that longer."""
    certain = [1.0] * 16
    for itl_s, most in ((0.0016, 7), (0.0032, 15)):
        plan = decide_with_drafts(situation(1, itl_s=itl_s), setting(CHUNKED), offers(1, *certain), 63)
        assert plan.depth is not None
        assert plan.depth.shape.num_tokens <= most + 1
        assert 1.5e-3 * max(1.0, plan.depth.shape.num_tokens / FREE_ROWS) <= itl_s
    tight = decide_with_drafts(situation(1, itl_s=0.001), setting(CHUNKED), offers(1, *certain), 63)
    assert tight.depth is None


def test_means_that_do_not_hold_are_caught_up_with_where_rows_are_free_and_gaps_are_not_stretched() -> None:
    """Two milliseconds behind."""
    late = replace(situation(2, tpot_s=0.001), now_s=1.003)
    plan = decide_with_drafts(late, setting(CHUNKED), offers(2, 0.9, 0.8, 0.7, 0.6), 60)
    assert plan.depth is not None
    assert plan.depth.counts == {SeqId(0): 4, SeqId(1): 4}  # four tokens in 1.25 ms instead of one in one
    # One who has no guesses is not made later yet.
    greedy = decide_with_drafts(late, setting(CHUNKED), [Offer(SeqId(0), [1.0] * 16)], 60)
    assert greedy.depth is None or greedy.depth.shape.num_tokens <= FREE_ROWS
    bound = replace(situation(2, itl_s=0.001), now_s=1.003)
    assert decide_with_drafts(bound, setting(CHUNKED), offers(2, 0.9, 0.8), 60).depth is None


def test_with_drafts_the_smallest_share_that_holds_moves() -> None:
    """MuxWise: two units, on which a row takes a millisecond, leave no room for a second one; five or eight do, and a
    token takes less of the device then.
    """
    now = situation(1, tokens=4000, tpot_s=0.0016)
    plain = decide(now, setting(MUXWISE))
    joint = decide_with_drafts(now, setting(MUXWISE), offers(1, 1.0, 1.0, 1.0, 1.0), 60)
    assert plain.units == 2
    assert joint.depth is not None
    assert joint.choice.form is Form.LANES
    assert joint.choice.reason is Reason.FEASIBLE
    assert joint.choice.units > plain.units
    assert joint.bet is not None
    assert joint.bet.gain_s(joint.depth.total) > 0 > joint.bet.gain_s(0)


def test_without_joint_depth_form_and_share_are_the_plain_ones() -> None:
    now = situation(2, tokens=4000, tpot_s=0.01)
    apart = PLAIT.without((Mechanism.JOINT_DEPTH,))
    plan = decide_with_drafts(now, setting(apart), offers(2, 0.9, 0.8, 0.7, 0.6), 60)
    assert (plan.choice.form, plan.choice.units) == (plan.plain.form, plan.plain.units)


def test_whoever_has_no_target_is_not_put_off_for_others_drafts() -> None:
    """Sixteen rows instead of two would take two milliseconds; the second sequence has no guess."""
    greedy = [Offer(SeqId(0), [1.0] * 16)]
    plan = decide_with_drafts(situation(2), setting(CHUNKED), greedy, 60)
    assert plan.depth is not None
    assert plan.depth.shape.num_tokens <= FREE_ROWS


def test_fused_steps_leave_room_for_rows() -> None:
    now = situation(2, tokens=500)
    plan = decide_with_drafts(now, setting(CHUNKED, max_step_tokens=32), offers(2, 0.95, 0.9, 0.85), 14)
    drafts = 0 if plan.depth is None else sum(plan.depth.counts.values())
    assert plan.choice.chunk_tokens + 2 + drafts <= 32


def test_on_a_roofline_depth_falls_as_the_batch_grows() -> None:
    prices = Prices(RooflineModel(PROGRAM, FORMATS, DEVICE, alpha=ALPHA), DEVICE.share_units, len(PROGRAM.spans))
    on_device = Setting(PLAIT, prices, shares_of(PLAIT, DEVICE.share_units, DEVICE.granule), 2048)
    chances = [0.7**k for k in range(1, 17)]
    depths = []
    for num in (1, 16, 64, 256):
        plan = decide_with_drafts(situation(num, tpot_s=0.5), on_device, offers(num, *chances), 1500)
        depths.append(0.0 if plan.depth is None else sum(plan.depth.counts.values()) / num)
    assert depths == sorted(depths, reverse=True)
    assert depths[0] >= 4
    assert depths[-1] < 1


@given(
    st.sampled_from([CHUNKED, MUXWISE, PLAIT]),
    st.sampled_from([0, 500, 4000]),
    st.lists(st.lists(st.floats(0.05, 1.0), max_size=16), min_size=1, max_size=12),
)
def test_a_look_at_first_drafts_rejects_nothing_that_would_have_been_taken(
    preset: Preset, tokens: int, rates: list[list[float]]
) -> None:
    now, asked = situation(len(rates), tokens=tokens), setting(preset)
    chances = [tuple(accumulate(one, mul)) for one in rates]
    plan = decide_with_drafts(now, asked, [Offer(SeqId(at), one) for at, one in enumerate(chances)], 40)
    best = max((one[0] for one in chances if one), default=0.0)
    assert plan.depth is None or best > least_chance(now, asked, 40)


def test_where_rows_are_dear_no_chance_is_enough_and_where_they_are_free_a_small_one_is() -> None:
    assert least_chance(situation(4 * FREE_ROWS), setting(PLAIT), 32) >= 1.0
    assert least_chance(situation(1), setting(PLAIT), 60) < 0.05
