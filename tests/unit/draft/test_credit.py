"""What is put at risk by drafts is bounded, whatever comes of them."""

from __future__ import annotations

from random import Random

from plait.draft.credit import Bet, Credit
from plait.draft.depth import FIRST_CREDIT_STEPS, LOSS_SHARE, MOST_CREDIT_STEPS

STEP_S = 0.01
DOUBLE = Bet(2 * STEP_S, plain_worth=1.0, base_worth=0.5, token_worth=0.5)
"""A step that takes twice as long as one without drafts, and is even if one of them is right."""


def test_a_bet_is_a_step_without_its_drafts_when_none_is_right_and_even_when_it_made_up_for_its_time() -> None:
    assert DOUBLE.gain_s(0) == -STEP_S
    assert DOUBLE.gain_s(1) == 0.0
    assert DOUBLE.gain_s(3) == 2 * STEP_S


def test_nothing_is_risked_before_a_step_was_seen() -> None:
    credit = Credit()
    assert not credit.allows(DOUBLE)
    credit.settle(STEP_S, None, 0)
    assert credit.allows(DOUBLE)


def test_drafts_that_are_never_right_cost_a_few_steps_and_half_a_percent() -> None:
    credit, lost_s, time_s = Credit(), 0.0, 0.0
    for _ in range(20_000):
        bet = DOUBLE if credit.allows(DOUBLE) else None
        seconds = STEP_S if bet is None else bet.seconds
        lost_s += 0.0 if bet is None else -bet.gain_s(0)
        time_s += seconds
        credit.settle(seconds, bet, 0)
    assert lost_s <= LOSS_SHARE * time_s + (FIRST_CREDIT_STEPS + 1) * STEP_S
    assert lost_s < 0.01 * time_s


def test_what_was_won_is_not_all_put_at_risk_again() -> None:
    credit, dice = Credit(), Random(1)
    for _ in range(1000):
        credit.settle(STEP_S, DOUBLE, dice.choice((2, 5, 9)))
    assert 0 < credit.seconds <= MOST_CREDIT_STEPS * 2 * STEP_S
