"""How long steps of decode take now: factors and margins of forms, and that decisions are told of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.unit.engine.kit import OneSecondPerToken, Stage, ask

from plait.assembly import Policy
from plait.core.request import ServiceClass, Slo
from plait.cost.scatter import Scatter
from plait.sched.multiplex.pacing import Pacing
from plait.sched.multiplex.presets import MUXWISE, PLAIT, Preset
from plait.sched.multiplex.situation import Form, Pace, Situation


def test_a_factor_is_the_median_of_the_last_steps_so_that_one_disturbed_step_is_none() -> None:
    pacing = Pacing(1.0)
    for seconds in (2.0, 2.2, 100.0):
        pacing.ran(Form.FUSED, seconds, 2.0)
    assert 1.0 < pacing.factor(Form.FUSED) < 1.2
    for seconds in (3.0, 3.0, 3.0):
        pacing.ran(Form.FUSED, seconds, 2.0)
    assert pacing.factor(Form.FUSED) == pytest.approx(1.5, rel=0.1)


def test_a_slow_second_that_was_seen_under_one_form_holds_for_all_and_is_over_for_all() -> None:
    """A form that nothing is seen of would else be as slow as when it was left, for good."""
    pacing = Pacing(1.0)
    for _ in range(300):
        pacing.ran(Form.FUSED, 1.0, 1.0)
    for _ in range(5):
        pacing.ran(Form.FUSED, 1.9, 1.0)
    assert pacing.factor(Form.FUSED) == pytest.approx(1.9, rel=0.05)
    assert pacing.factor(Form.DECODE) == pytest.approx(1.9, rel=0.05)
    for _ in range(5):
        pacing.ran(Form.DECODE, 1.0, 1.0)
    assert pacing.factor(Form.DECODE) == pytest.approx(1.0)
    assert pacing.factor(Form.FUSED) == pytest.approx(1.0, rel=0.05)
    assert pacing.paces()[Form.LANES].factor == pytest.approx(1.0)


def test_what_is_wrong_with_the_prices_of_a_form_stays_with_it_until_it_was_long_not_tried() -> None:
    pacing = Pacing(1.0)
    for _ in range(50):
        for _ in range(10):
            pacing.ran(Form.FUSED, 1.28, 1.0)
        for _ in range(10):
            pacing.ran(Form.DECODE, 1.0, 1.0)
    paces = pacing.paces()
    assert paces[Form.FUSED].usual == pytest.approx(1.28, abs=0.03)
    assert paces[Form.DECODE].usual == pytest.approx(1.0, abs=0.02)
    assert paces[Form.FUSED].factor == pytest.approx(1.28, abs=0.03)
    for _ in range(5000):
        pacing.ran(Form.DECODE, 1.0, 1.0)
    assert 1.0 < pacing.paces()[Form.FUSED].usual < 1.03


def test_prompts_by_themselves_are_compared_by_what_they_took_with_all_that_turns_cost() -> None:
    pacing = Pacing(1.0)
    for _ in range(40):
        pacing.went(1.2, 0.5, is_prompts=True)
        pacing.went(1.0, 0.01)
    assert pacing.paces()[Form.PREFILL].usual == pytest.approx(1.2, abs=0.01)


def test_one_late_end_raises_a_margin_by_a_quarter_of_the_first_and_a_hundred_others_take_that_back() -> None:
    pacing = Pacing(4.0)
    pacing.seen(Form.DECODE, 100.0)
    assert pacing.paces()[Form.DECODE].margin_s == pytest.approx(4.99)
    for _ in range(99):
        pacing.seen(Form.DECODE, 1.0)
    assert pacing.paces()[Form.DECODE] == Pace(1.0, pytest.approx(4.0))


def test_one_in_a_hundred_ends_is_later_than_the_margin_in_the_long_run() -> None:
    pacing, rng = Pacing(4e-3), random.Random(1)
    num_late = 0
    for place in range(30_000):
        late_s = rng.expovariate(1000.0)
        num_late += place >= 5000 and late_s > pacing.paces()[Form.FUSED].margin_s
        pacing.seen(Form.FUSED, late_s)
    assert 0.006 <= num_late / 25_000 <= 0.014


def test_a_step_that_was_held_up_for_half_of_its_time_raises_no_margin() -> None:
    """Though one in ten is: a margin that keeps even those would be longer than the step."""
    pacing = Pacing(1.0)
    for place in range(2000):
        promise = pacing.promise(Form.DECODE, 0.0, 10.0)
        late_s = 9.0 if place % 10 == 0 else 0.5
        pacing.ended(promise, 10.0, 10.0 + late_s)
    assert 0.4 < pacing.paces()[Form.DECODE].margin_s < 1.0
    late = pacing.promise(Form.FUSED, 0.0, 10.0)
    pacing.ended(late, 10.0, 10.0 + 4.9)
    assert pacing.paces()[Form.FUSED].margin_s > 1.0


def test_steps_that_were_held_up_are_among_the_one_in_a_hundred() -> None:
    """Where one in two hundred is, no more than another one in two hundred may be late for other reasons."""

    def late(stalled_every: int) -> float:
        pacing, rng = Pacing(0.1), random.Random(2)
        num_late = 0
        for place in range(30_000):
            late_s = 9.0 if place % stalled_every == 0 else rng.expovariate(20.0)
            num_late += place >= 5000 and 9.0 > late_s > pacing.paces()[Form.DECODE].margin_s
            pacing.ended(pacing.promise(Form.DECODE, 0.0, 10.0), 10.0, 10.0 + late_s)
        return num_late / 25_000

    assert 0.007 <= late(10**9) <= 0.013
    assert 0.003 <= late(200) <= 0.007
    assert 0.001 <= late(20) <= 0.004


def test_a_form_that_was_noisy_is_tried_again() -> None:
    pacing = Pacing(4.0)
    for _ in range(5):
        pacing.seen(Form.LANES, 100.0)
    assert pacing.paces()[Form.LANES].margin_s > 8.0
    for _ in range(1000):
        pacing.seen(Form.FUSED, 5.0)
    assert pacing.paces()[Form.LANES].margin_s == pytest.approx(4.0)


def test_forecasts_go_by_how_long_steps_took_in_the_last_seconds_and_no_step_counts_more_than_fourfold() -> None:
    pacing = Pacing(1.0)
    for _ in range(2000):
        pacing.went(2.0, 0.01)
    assert pacing.slowness == pytest.approx(2.0, abs=0.01)
    pacing.went(100.0, 0.01)
    assert pacing.slowness < 2.02
    for _ in range(2000):
        pacing.went(1.0, 0.01)
    assert pacing.slowness == pytest.approx(1.0, abs=0.01)


def test_a_margin_begins_with_what_nearly_all_steps_of_a_calibration_kept_to() -> None:
    scatter = Scatter((1.0,), (1.0,), (-1e-3, 0.0, 1e-3), (1e-4, 3e-3), 0.0)
    assert scatter.margin_s(1.0) == pytest.approx(4e-3)
    assert scatter.margin_s(0.0) == 0.0
    assert replace(scatter, late_s=(0.0,)).margin_s(0.5) == 0.0


@pytest.mark.parametrize(
    ("preset", "margin_s", "is_told"), [(PLAIT, 0.5, True), (PLAIT, None, False), (MUXWISE, 0.5, False)]
)
def test_decisions_of_plait_are_told_how_steps_went_and_others_are_not(
    preset: Preset, margin_s: float | None, is_told: bool
) -> None:
    """A token takes a second whatever the share, just as it is priced, and its end is seen at once."""
    situations: list[Situation] = []
    policy = Policy(
        preset,
        OneSecondPerToken(),
        num_spans=4,
        observe=lambda situation, choice: situations.append(situation),
        margin_s=margin_s,
    )
    on = Stage(
        max_step_tokens=40,
        max_rows=4,
        queue_depth=1,
        slos={ServiceClass.ONLINE: Slo(itl_s=8.0)},
        policy=policy,
        share_units=4,
    )
    on.arrive(ask("stream", "abc", max_tokens=20))
    on.arrive(ask("prompt", "a" * 30, max_tokens=1), at_s=6.0)
    on.run()
    beside = [one for one in situations if one.prefill is not None and one.decoding]
    assert beside
    for one in beside:
        assert (one.paces is not None) == is_told
    if is_told:
        last = beside[-1].paces
        assert last is not None
        assert {pace.factor for pace in last.values()} == {1.0}
        assert min(pace.margin_s for pace in last.values()) < 0.5
