"""Times of steps, learned from those that were run."""

from __future__ import annotations

import pytest

from plait.sched.colocation.times import StepTimes


def test_a_step_and_its_tokens_are_told_apart() -> None:
    times = StepTimes()
    for num_tokens in (1, 8, 64, 3, 20):
        times.took(num_tokens, 0.007 + 0.001 * num_tokens)
    assert times.line() == pytest.approx((0.007, 0.001))
    assert times.tokens_within(0.027 + 1e-9, most=512) == 20
    assert times.tokens_within(0.027, most=4) == 4


def test_while_all_steps_are_alike_all_is_the_tokens() -> None:
    times = StepTimes()
    for _ in range(5):
        times.took(10, 0.02)
    assert times.line() == pytest.approx((0.0, 0.002))


def test_one_token_is_always_within() -> None:
    times = StepTimes()
    for num_tokens in (1, 50):
        times.took(num_tokens, 1.0 + num_tokens)
    assert times.tokens_within(0.5, most=64) == 1


def test_what_became_slower_is_learned() -> None:
    times = StepTimes()
    for slowness in (1.0, 3.0):
        for place in range(300):
            times.took(1 + place % 16, slowness * (0.01 + 0.001 * (1 + place % 16)))
    assert times.seconds(16) == pytest.approx(3 * 0.026, rel=0.05)


def test_tokens_that_cost_nothing_fit_as_many_as_may_be() -> None:
    times = StepTimes()
    for num_tokens in (1, 50, 20):
        times.took(num_tokens, 0.01 if num_tokens < 50 else 0.009)
    assert times.tokens_within(0.02, most=64) == 64
