"""The decision procedure on a device whose prices can be worked out in one's head.

Ten units. A decode step takes 1 s a row and unit, a prompt 1 s a token and unit; whatever runs beside something takes
a tenth longer, and two tenths at worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from plait.core.ids import SeqId
from plait.core.step import ChunkShape, StepShape
from plait.cost.model import Bound, StepPrice
from plait.cost.solo import decode_shape
from plait.sched.multiplex.decide import Setting, decide
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import (
    BULLET,
    MUXWISE,
    PLAIT,
    TEMPORAL,
    UNPARTITIONED,
    Preset,
    shares_of,
    static_split,
    timed_chunks,
)
from plait.sched.multiplex.pricing import Prices, shape_of
from plait.sched.multiplex.situation import NEVER, Choice, Decoding, Form, Pace, Prefill, Prompt, Reason, Situation

UNITS, SPANS = 10, 20


class Plain:
    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = shape.num_tokens / share
        return StepPrice(seconds * (1.1 if beside else 1.0), seconds * (1.2 if beside else 1.0), Bound.COMPUTE)


def setting(preset: Preset, max_step_tokens: int = 64) -> Setting:
    shares = () if preset.is_fused else shares_of(preset, UNITS)
    return Setting(preset, Prices(Plain(), UNITS, SPANS), shares, max_step_tokens)


def prompt(num_tokens: int = 40, due_s: float = NEVER, seq: int = 100) -> Prompt:
    return Prompt(SeqId(seq), 0.0, 0, num_tokens, due_s)


def about(
    *,
    itl_s: float | None = None,
    tpot_s: float | None = None,
    rows: int = 3,
    num_said: int = 0,
    due_s: float = NEVER,
    tokens: int = 40,
) -> Situation:
    """Three rows that said something just now, and a prompt of forty tokens that waits."""
    said = tuple(Decoding(SeqId(n), 0.0, 10.0, num_said, itl_s, tpot_s) for n in range(rows))
    prompts = (prompt(tokens, due_s),)
    return Situation(10.0, said, decode_shape(rows, 50), prefill=Prefill(prompts, shape_of(prompts)))


def chosen(preset: Preset, now: Situation) -> Choice:
    return decide(now, setting(preset))


def test_whoever_is_alone_has_everything() -> None:
    now = about(itl_s=1.0)
    for preset in (BULLET, MUXWISE, PLAIT, TEMPORAL, static_split(4)):
        assert chosen(preset, replace(now, prefill=None)) == Choice(Form.DECODE, UNITS, Reason.ALONE)
        alone = replace(now, decoding=(), decode=StepShape(()))
        assert chosen(preset, alone) == Choice(Form.PREFILL, 0, Reason.ALONE)


def test_muxwise_takes_the_fewest_units_whose_worst_step_is_in_time() -> None:
    # 3 rows x 1.2 s on c units within 1 s: four; without the guard 3 x 1.1 s still needs four, within 0.9 s too.
    assert chosen(MUXWISE, about(itl_s=1.0)).units == 4
    assert chosen(MUXWISE, about(itl_s=0.71)).units == 6
    assert chosen(MUXWISE.without([Mechanism.GUARD]), about(itl_s=0.67)).units == 5
    assert chosen(MUXWISE, about(itl_s=0.67)).units == 6


def test_muxwise_gives_decode_as_much_as_there_is_when_nothing_is_enough() -> None:
    choice = chosen(MUXWISE, about(itl_s=0.1))
    assert (choice.form, choice.units, choice.reason) == (Form.LANES, 9, Reason.MOST_DECODE)


def test_layers_outlast_the_decode_step() -> None:
    # Decode: 3 x 1.1 / 4 s; the prompt: 40 x 1.1 / 6 s in 20 layers.
    assert chosen(MUXWISE, about(itl_s=1.0)).num_spans == 3
    assert chosen(MUXWISE, about(itl_s=1.0, tokens=1)).num_spans == SPANS


def test_what_is_left_of_a_step_in_flight_counts_and_the_next_one_for_those_who_join() -> None:
    now = replace(about(itl_s=1.0), is_stepping=True, decode_left=0.5)
    assert chosen(MUXWISE, now).units == 2
    joining = (Decoding(SeqId(9), 10.0, 10.0, 0, itl_s=1.0),)
    # Half of 3 x 1.2 s, and then 4 x 1.2 s, on c units within 1 s.
    assert chosen(MUXWISE, replace(now, joining=joining, merged=decode_shape(4, 50))).units == 7


def test_bullet_holds_the_mean_of_nine_in_ten() -> None:
    slow = about(tpot_s=2.0, rows=10, num_said=5)
    # (10 + T) / 6 <= 2: T = 11 s / c <= 2 s.
    assert chosen(BULLET, slow).units == 6
    hopeless = slow.decoding[0]._replace(num_said=0)
    assert chosen(BULLET, replace(slow, decoding=(hopeless, *slow.decoding[1:]))).units == 6


def test_bullet_puts_decode_off_when_prompts_are_late_and_means_allow_it() -> None:
    # Twice 3 x 1.1 / 1 s fit into the credit of 10 s; the prompt is late whatever happens.
    late = about(tpot_s=2.0, num_said=9, due_s=9.0)
    choice = chosen(BULLET, late)
    assert (choice.form, choice.reason, choice.until_s) == (Form.PREFILL, Reason.DELAYED, pytest.approx(13.3))
    assert chosen(BULLET, replace(late, is_stepping=True)).form is Form.LANES
    assert chosen(BULLET.without([Mechanism.DECODE_DELAY]), late).form is Form.LANES


def test_a_sequence_with_a_bound_on_gaps_is_never_put_off() -> None:
    late = about(tpot_s=2.0, num_said=9, due_s=9.0)
    bounded = late.decoding[0]._replace(itl_s=100.0)
    assert chosen(BULLET, replace(late, decoding=(bounded, *late.decoding[1:]))).form is Form.LANES


def test_bullet_balances_when_both_are_late() -> None:
    both = about(tpot_s=0.5, num_said=1, due_s=11.0)
    choice = chosen(BULLET, both)
    assert (choice.form, choice.reason) == (Form.LANES, Reason.BALANCED)
    # TPOT: (10 + 3.3 / c) / 2 / 0.5; TTFT: (10 + 44 / (10 - c)) / 11. Decode is further behind until there is one unit
    # more than this for prompts.
    worse = {c: max((10 + 3.3 / c) / 2 / 0.5, (10 + 44 / (10 - c)) / 11) for c in range(1, 10)}
    assert choice.units == min(worse, key=worse.__getitem__)
    assert chosen(BULLET.without([Mechanism.BALANCE]), both).reason is Reason.MOST_DECODE


def test_bullet_hands_over_in_the_last_layers_of_the_last_prompt() -> None:
    now = about(tpot_s=2.0, num_said=9)
    assert now.prefill is not None
    early = replace(now, prefill=replace(now.prefill, left=0.5), is_prefilling=True)
    layer_s = 44 / 9 / SPANS
    choice = chosen(BULLET, early)
    assert (choice.units, choice.until_s) == (1, pytest.approx(10.0 + 6 * layer_s))
    last = replace(early, prefill=replace(now.prefill, left=4 / SPANS))
    assert (chosen(BULLET, last).units, chosen(BULLET, last).reason) == (5, Reason.HAND_OVER)
    assert chosen(BULLET, replace(last, waiting=(prompt(),))).units == 1


def test_without_a_partition_each_has_units_by_its_blocks() -> None:
    # Three rows are one tile of 128, 500 prompt tokens are four: a fifth of ten units, whatever the targets.
    for itl_s in (None, 0.01):
        assert chosen(UNPARTITIONED, about(itl_s=itl_s, tokens=500)).units == 2
    assert chosen(BULLET.without([Mechanism.PARTITION]), about(tpot_s=9.0, tokens=5000)).units == 1


def test_a_static_split_stays_what_it_is() -> None:
    for itl_s in (0.1, 1.0, 10.0):
        assert chosen(static_split(3), about(itl_s=itl_s)).units == 3


def test_turns_last_until_decode_must_go_on() -> None:
    # 1 s from the last token, 0.3 s of which the decode step takes on all units.
    now = about(itl_s=1.0)
    assert chosen(TEMPORAL, now).until_s == pytest.approx(10.7)
    over = replace(now, now_s=10.7, form=Form.PREFILL)
    assert chosen(TEMPORAL, over).form is Form.DECODE
    # Prompts go on by a layer at least.
    late = replace(now, now_s=10.9, form=Form.DECODE)
    assert chosen(TEMPORAL, late).until_s == pytest.approx(10.9 + 4 / SPANS)


def test_a_turn_is_as_short_as_prompts_can_be_stopped() -> None:
    """A layer of 4,000 tokens takes 20 s, and no answer can wait for that; where a prompt stops sooner, none has to."""
    now, sooner = about(itl_s=1.0, tokens=4000), Prices(Plain(), UNITS, SPANS, stop_s=0.01)
    for preset, until_s in ((TEMPORAL, 10.0 + 4000 / UNITS / SPANS), (PLAIT, NEVER)):
        assert chosen(preset, now).until_s == pytest.approx(until_s)
        choice = decide(now, replace(setting(preset), prices=sooner))
        assert (choice.form, choice.until_s) == (Form.PREFILL, pytest.approx(10.7))
    at_last = replace(now, now_s=10.695, form=Form.PREFILL)
    assert decide(at_last, replace(setting(TEMPORAL), prices=sooner)).form is Form.DECODE


def test_what_does_not_fit_into_one_step_of_a_prompt_counts_for_when_it_has_its_token() -> None:
    """Decode can wait, for 7 s; prompts have nine units: 80 tokens take more than the 8 s that they have, 40 do not."""
    whole = about(tpot_s=0.81, num_said=20, tokens=80, due_s=18.0)
    assert whole.prefill is not None
    piece = Prefill(whole.prefill.prompts, StepShape((ChunkShape(0, 40, 0),)))
    assert [(one.start, one.num_tokens) for one in piece.rest()] == [(40, 40)]
    assert whole.prefill.rest() == []
    for prefill in (whole.prefill, piece):
        assert chosen(BULLET, replace(whole, prefill=prefill)).reason is Reason.DELAYED
    assert chosen(BULLET, about(tpot_s=0.81, num_said=20, due_s=18.0)).reason is Reason.FEASIBLE


def test_chunks_by_time_hold_as_many_tokens_as_fit_into_it() -> None:
    # 3 rows and n tokens in 4 s on ten units: 37, in sixteens 32; the whole prompt of 35 fits too.
    assert chosen(timed_chunks(4.0), about()).chunk_tokens == 32
    assert chosen(timed_chunks(4.0), about(tokens=35)).chunk_tokens == 35
    # Nine tokens beside three rows: below sixteen in twos.
    assert chosen(timed_chunks(1.2), about()).chunk_tokens == 8


def test_where_nothing_fits_a_chunk_makes_a_step_hardly_longer() -> None:
    # Sixteen tokens are a tenth of 160 rows and more; of 80 rows eight are, of three none, and two go all the same.
    for rows, chunk in ((160, 16), (80, 8), (3, 2)):
        choice = decide(about(rows=rows), setting(timed_chunks(0.1), 512))
        assert (choice.chunk_tokens, choice.reason) == (chunk, Reason.MOST_DECODE)


def test_plait_takes_what_brings_prompts_on_fastest_and_holds_decode() -> None:
    # Fused: 16 tokens in 1.9 s, 8.4/s. Side by side: 2 units for decode (3 x 1.2 / 2 = 1.8 s), 8 / 1.1 = 7.3/s.
    # In turns: 0.3 of 2 s for decode, the rest at 10/s: 8.5/s, a little more.
    now = about(itl_s=2.0)
    assert chosen(PLAIT, now).form is Form.PREFILL
    assert chosen(PLAIT.without([Mechanism.SLICES]), now).form is Form.FUSED
    lanes = chosen(PLAIT.without([Mechanism.SLICES, Mechanism.FUSED]), now)
    assert (lanes.form, lanes.units) == (Form.LANES, 2)


def test_plait_keeps_what_it_does_while_nothing_is_better_by_more_than_the_dead_band() -> None:
    now = replace(about(itl_s=2.0), form=Form.FUSED, units=UNITS)
    assert (chosen(PLAIT, now).form, chosen(PLAIT, now).reason) == (Form.FUSED, Reason.KEPT)
    assert chosen(PLAIT.without([Mechanism.DEAD_BAND]), now).form is Form.PREFILL


def begun(now: Situation, form: Form) -> Situation:
    """A prompt is half done, and its turn has just ended, or decode's has."""
    assert now.prefill is not None
    return replace(now, prefill=replace(now.prefill, left=0.5), is_prefilling=True, form=form)


def test_a_turn_of_prompts_ends_in_decode_however_late_it_is() -> None:
    """A timer is never early. To find that nothing holds the target any more, and share the device, is worst."""
    for late_s in (0.0, 1e-9, 0.5, 5.0):
        now = replace(begun(about(itl_s=2.0), Form.PREFILL), now_s=11.7 + late_s)
        assert (chosen(PLAIT, now).form, chosen(PLAIT, now).units) == (Form.DECODE, UNITS)


def test_where_nothing_holds_decode_hardly_waits_unless_prompts_are_late_too() -> None:
    hopeless = begun(about(itl_s=0.2), Form.DECODE)
    choice = chosen(PLAIT, hopeless)
    assert (choice.form, choice.reason) == (Form.PREFILL, Reason.STARVED)
    # A layer of the prompt takes 0.2 s, a tenth of the step 0.03 s.
    assert choice.until_s == pytest.approx(10.2)
    assert chosen(PLAIT, replace(hopeless, form=Form.PREFILL)).form is Form.DECODE
    late = begun(about(itl_s=0.2, due_s=11.0), Form.DECODE)
    assert chosen(PLAIT, late).reason is Reason.BALANCED


class Scattered(Plain):
    """A step takes up to as many times its price."""

    def __init__(self, spread: float) -> None:
        self._spread = spread

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        price = super().price(shape, share, beside)
        return replace(price, worst_s=self._spread * price.worst_s)


def scattered(preset: Preset, spread: float) -> Setting:
    return replace(setting(preset), prices=Prices(Scattered(spread), UNITS, SPANS))


def paces(margin_s: float = 0.1, **usual: float) -> dict[Form, Pace]:
    """Everything takes half as long again as is usual in its form."""
    found = {form: usual.get(form, 1.0) for form in Form}
    return {form: Pace(1.5 * value, margin_s, value) for form, value in found.items()}


def test_the_guard_of_plait_goes_by_how_steps_go_now() -> None:
    """A step of three rows takes 0.3 s by its price; now half as long again, and it is seen up to 0.1 s later."""
    now = replace(begun(about(itl_s=2.0), Form.DECODE), paces=paces())
    assert decide(now, scattered(PLAIT, 2.0)).until_s == pytest.approx(12.0 - 0.55)
    assert chosen(PLAIT.without([Mechanism.GUARD]), now).until_s == pytest.approx(12.0 - 0.3)
    # Fused: 1.5 (3 + n) / 10 + 0.1 s within 2 s.
    fused = replace(about(itl_s=2.0), paces=paces())
    assert decide(fused, scattered(PLAIT.without([Mechanism.SLICES, Mechanism.LANES]), 2.0)).chunk_tokens == 8


@pytest.mark.parametrize("spread", [1.0, 1.6, 2.0])
def test_no_margin_leaves_prompts_less_than_turns_by_prices_do(spread: float) -> None:
    """Unless steps take longer at all times now than they did at worst: 0.45 s here."""
    now = replace(begun(about(itl_s=2.0), Form.DECODE), paces=paces(margin_s=1.0))
    until_s = decide(now, scattered(PLAIT, spread)).until_s
    assert until_s == pytest.approx(12.0 - max(0.45, 0.3 * spread))
    assert spread < 1.5 or until_s == pytest.approx(decide(now, scattered(TEMPORAL, spread)).until_s)


def test_forms_are_compared_by_what_their_steps_usually_take_and_not_by_prices_alone() -> None:
    """Prompts are as fast in any form by prices, so that a tenth decides."""
    now = about(itl_s=2.0)
    for form, others in ((Form.FUSED, 1.3), (Form.PREFILL, 1.3)):
        usual = {str(one): others for one in Form if one is not form} | {"decode": 1.0, str(form): 1.0}
        preset = PLAIT.without([Mechanism.LANES, Mechanism.DEAD_BAND])
        choice = decide(replace(now, paces=paces(0.0, **usual)), scattered(preset, 2.0))
        assert choice.form is form


def test_plait_fuses_whole_steps_when_decode_has_no_targets() -> None:
    choice = chosen(PLAIT, about())
    assert (choice.form, choice.chunk_tokens, choice.reason) == (Form.FUSED, 61, Reason.UNBOUND)


def test_plait_does_not_fuse_a_prompt_that_is_in_flight_by_itself() -> None:
    now = replace(begun(about(itl_s=1.9), Form.DECODE), form=None)
    assert chosen(PLAIT, now).form is Form.PREFILL
    assert chosen(PLAIT.without([Mechanism.SLICES]), now).form is Form.LANES


def test_chunks_of_a_fused_step_are_the_first_tokens_of_prompts_in_order() -> None:
    now = replace(about(), waiting=(prompt(40, seq=101),))
    assert chosen(timed_chunks(6.0), now).chunk_tokens == 48
    assert now.decode.chunks[0] == ChunkShape(50, 1, 1)
