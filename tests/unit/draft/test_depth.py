"""Depth follows prices: deep where rows are free, none where they cost what they bring, and losses are bounded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.draft.depth import LOSS_SHARE, MOST_DRAFTS, FixedDepth, Made, NextStep, PricedDepth

STEP_S = 0.010
SURE = [[0.99**place for place in range(1, MOST_DRAFTS + 1)]]


def memory_bound(rows: int) -> float:
    """Eight rows for the price of one."""
    return STEP_S * max(1.0, rows / 8)


def compute_bound(rows: int) -> float:
    return STEP_S * rows


def seen(price: Callable[[int], float], *numbers: int) -> PricedDepth:
    depth = PricedDepth()
    for rows in numbers:
        for _ in range(5):
            depth.note(Made(rows, 0, 0, price(rows)))
    return depth


def test_before_anything_was_measured_nothing_is_drafted() -> None:
    depth = PricedDepth()
    assert not depth.may_pay(NextStep(1))
    assert depth.choose(NextStep(1), SURE) == [0]


def test_drafts_go_as_deep_as_rows_are_free() -> None:
    depth = seen(memory_bound, 1, 2, 4, 8, 16, 32)
    assert 7 <= depth.choose(NextStep(1), SURE)[0] <= 12
    assert 2 <= depth.choose(NextStep(1), [[0.5**place for place in range(1, 17)]])[0] <= 8


def test_where_every_row_costs_the_same_no_draft_pays_and_nobody_need_guess() -> None:
    depth = seen(compute_bound, 1, 2, 4, 8, 16, 32)
    assert not depth.may_pay(NextStep(1))
    assert not depth.may_pay(NextStep(8))
    assert depth.choose(NextStep(8), SURE * 8) == [0] * 8


def test_the_likelier_sequence_is_drafted_deeper() -> None:
    depth = seen(memory_bound, 1, 2, 4, 8, 16, 32)
    likely, unlikely = depth.choose(NextStep(2), [[0.9, 0.8, 0.7, 0.6], [0.3, 0.09, 0.03, 0.01]])
    assert likely > unlikely


def test_nobody_pays_for_the_drafts_of_others() -> None:
    """Eight rows are free, and further ones cheap. With guesses for all, they are worth it; not for one without."""

    def price(rows: int) -> float:
        return STEP_S * (1.0 + 0.05 * max(rows - 8, 0))

    depth = seen(price, 1, 2, 4, 6, 8, 12, 16, 32)
    for _ in range(20):
        depth.note(Made(6, 0, 0, price(6), 0.0002))
    lucky = [0.95, 0.9]
    assert sum(depth.choose(NextStep(6), [lucky] * 6)) >= 6
    assert sum(depth.choose(NextStep(6), [lucky] * 5)) == 2


def test_times_are_explored_from_what_was_seen_on() -> None:
    depth = seen(memory_bound, 1)
    assert depth.choose(NextStep(1), SURE) == [3]
    depth.note(Made(1, 3, 3, memory_bound(4), 0.0))
    assert depth.choose(NextStep(1), SURE)[0] in range(6, 10)


def test_rows_are_never_more_than_asked_for() -> None:
    for depth in (seen(memory_bound, 1, 8, 64), FixedDepth()):
        assert sum(depth.choose(NextStep(3, 5), SURE * 3)) <= 5


@pytest.mark.parametrize("price", [memory_bound, compute_bound])
def test_a_drafter_that_is_never_right_costs_a_bounded_part_of_the_time(price: Callable[[int], float]) -> None:
    """Although it goes on saying that it is sure, and waiting for its guesses costs a tenth of a step."""
    depth, lost_s, worked_s, num_steps = seen(price, 1), 0.0, 0.0, 20_000
    for _ in range(num_steps):
        (drafts,) = depth.choose(NextStep(1), SURE) if depth.may_pay(NextStep(1)) else [0]
        seconds, waited_s = price(1 + drafts), 0.1 * STEP_S if drafts else None
        depth.note(Made(1, drafts, 0, seconds, waited_s))
        worked_s += seconds
        lost_s += seconds + (waited_s or 0.0) - price(1)
    assert lost_s < (LOSS_SHARE * worked_s + 8 * STEP_S) * 1.2
    assert lost_s < 0.01 * worked_s


def test_who_waits_for_guesses_and_gets_none_pays_for_it_too() -> None:
    depth = seen(memory_bound, 1)
    before_s = depth.credit_s
    depth.note(Made(1, 0, 0, STEP_S, 0.004, waited_for_drafts=True))
    assert depth.credit_s == pytest.approx(before_s - 0.004 + LOSS_SHARE * STEP_S)


def test_a_drafter_that_is_right_earns_what_may_be_risked() -> None:
    depth = seen(memory_bound, 1)
    before_s = depth.credit_s
    depth.note(Made(1, 3, 3, memory_bound(4), 0.001))
    assert depth.credit_s > before_s + 2 * STEP_S


def test_a_drafted_step_with_prompts_is_booked_at_the_price_of_its_rows_and_its_time_is_not_learned() -> None:
    depth, few = seen(compute_bound, 1, 2, 4, 8), seen(compute_bound, 1, 2, 4, 8)
    before_s = depth.credit_s
    depth.note(Made(2, 3, 0, 7.0, 0.001, num_rows_beside=100))
    assert depth.credit_s == pytest.approx(before_s - 3 * STEP_S - 0.001)
    few.note(Made(2, 3, 2, 7.0, num_rows_beside=0))
    assert few.credit_s == pytest.approx(before_s - 3 * STEP_S + 2 * STEP_S)
    assert depth._times.seconds(5) == pytest.approx(compute_bound(5))


def test_beside_prompts_rows_are_not_taken_to_be_free() -> None:
    """Although they are in a step of few rows."""
    depth = seen(memory_bound, 1, 4, 8, 16)
    before_s = depth.credit_s
    depth.note(Made(1, 3, 0, 7.0, num_rows_beside=100))
    assert depth.credit_s <= before_s - 3 * STEP_S / 8


def test_drafts_that_are_never_right_stop_although_every_step_of_theirs_has_prompts() -> None:
    depth, num_drafted = seen(memory_bound, 1, 2, 4, 8, 16), 0
    for _ in range(1000):
        (drafts,) = depth.choose(NextStep(1), SURE)
        if drafts:
            num_drafted += 1
            depth.note(Made(1, drafts, 0, 1.0, num_rows_beside=100))
    assert 0 < num_drafted < 40


@pytest.mark.parametrize(
    ("disturbed", "times"),
    [(Made(1, 3, 3, 1.0, 0.001), 2), (Made(1, 0, 0, STEP_S, 1.0, waited_for_drafts=True), 12)],
)
def test_a_disturbance_does_not_end_drafting_for_ever(disturbed: Made, times: int) -> None:
    """Neither steps with drafts that took a hundred times as long, nor waits that did."""
    depth = seen(memory_bound, 1)
    for _ in range(times):
        depth.note(disturbed)
    assert depth.choose(NextStep(1), SURE) == [0]
    for _ in range(4000):
        depth.note(Made(1, 0, 0, STEP_S))
    assert depth.choose(NextStep(1), SURE)[0] > 2


def test_who_waits_for_a_token_pays_for_rows_only_if_it_is_the_right_one() -> None:
    """Rows that cost something, and a wait that costs nothing: however seldom the token is right, waiting for it pays
    where verifying behind it does.
    """

    def price(rows: int) -> float:
        return STEP_S * (1.0 + 0.2 * (rows - 1))

    depth = seen(price, 1, 2, 3, 4)
    for _ in range(40):
        depth.note(Made(1, 1, 1, price(2), 0.0))
    guess = [[0.8, 0.64]]
    assert depth.choose(NextStep(1), guess)[0] > 0
    assert depth.may_wait(NextStep(1), [0.9], guess)
    assert depth.may_wait(NextStep(1), [0.5], guess)
    assert not depth.may_wait(NextStep(1), [0.02], guess)
    for _ in range(40):
        depth.note(Made(1, 1, 1, price(2), 0.6 * STEP_S))
    assert not depth.may_wait(NextStep(1), [0.5], guess)


def test_where_nothing_can_be_planned_ahead_drafts_are_not_charged_for_waiting() -> None:
    depth = seen(memory_bound, 1, 2, 4)
    for _ in range(40):
        depth.note(Made(1, 1, 1, memory_bound(2), STEP_S))
    guess = [[0.6, 0.3]]
    assert depth.choose(NextStep(1), guess) == [0]
    assert not depth.may_pay(NextStep(1), 1.0, 0.1)
    assert depth.choose(NextStep(1, waits_anyway=True), guess)[0] > 0
    assert depth.may_pay(NextStep(1, waits_anyway=True), 1.0, 0.1)


@given(
    st.lists(st.tuples(st.integers(1, 24), st.floats(0.001, 0.1)), min_size=1, max_size=12),
    st.floats(0.0, 0.02),
    st.lists(st.lists(st.floats(0.05, 1.0), max_size=8), min_size=1, max_size=6),
    st.floats(0.1, 1.0),
)
def test_a_look_rejects_nothing_that_would_have_been_taken(
    steps: list[tuple[int, float]], wait_s: float, rates: list[list[float]], reached: float
) -> None:
    depth = PricedDepth()
    for rows, seconds in sorted(steps):
        depth.note(Made(rows, 0, 0, seconds, wait_s))
    chances = [list(accumulate(of_guess, mul)) for of_guess in rates]
    best = max((one[0] for one in chances if one), default=0.0)
    taken = any(depth.choose(NextStep(len(rates)), chances))
    waited = depth.may_wait(NextStep(len(rates)), [reached] * len(rates), chances)
    assert depth.may_pay(NextStep(len(rates)), 1.0, best) or not taken
    assert depth.may_pay(NextStep(len(rates)), reached, best) or not waited


@given(st.lists(st.floats(0.5, 3.0), min_size=1, max_size=80), st.integers(1, 8), st.integers(0, 3))
def test_plain_steps_that_are_told_together_earn_what_they_do_one_by_one(
    times: list[float], rows: int, num_drafts: int
) -> None:
    together, one_by_one = seen(memory_bound, 1, rows), seen(memory_bound, 1, rows)
    for depth in (together, one_by_one):
        depth.note(Made(rows, num_drafts, 0, STEP_S, waited_s=STEP_S / 5))
    together.note_plain(rows, [STEP_S * one for one in times])
    for one in times:
        one_by_one.note(Made(rows, 0, 0, STEP_S * one))
    # Where the credit is as high as it may be, the bound follows the mean step by step; together, once.
    assert together.credit_s == pytest.approx(one_by_one.credit_s, rel=0.2)


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_what_is_chosen_behind_them_is_the_same(rows: int) -> None:
    together, one_by_one = seen(memory_bound, 1, 2, 4), seen(memory_bound, 1, 2, 4)
    together.note_plain(rows, [2 * STEP_S] * 40)
    for _ in range(40):
        one_by_one.note(Made(rows, 0, 0, 2 * STEP_S))
    step, chances = NextStep(rows), [[0.8, 0.7, 0.6, 0.5]] * rows
    assert together.choose(step, chances) == one_by_one.choose(step, chances)
    assert together.may_pay(step) == one_by_one.may_pay(step)
    assert together.credit_s == pytest.approx(one_by_one.credit_s)
