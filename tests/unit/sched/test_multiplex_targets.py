"""Next-token deadlines: bounds on gaps and on their mean as settings of one number."""

from __future__ import annotations

import pytest

from plait.core.ids import SeqId
from plait.sched.multiplex.situation import NEVER, Decoding
from plait.sched.multiplex.targets import Credit, due_s, hard_due_s, lateness, soft_due_s

MEAN = Credit()


def one(
    first_s: float = 0.0,
    last_s: float = 0.0,
    num_said: int = 0,
    itl_s: float | None = None,
    tpot_s: float | None = None,
) -> Decoding:
    return Decoding(SeqId(0), first_s, last_s, num_said, itl_s, tpot_s)


def test_a_bound_on_gaps_counts_from_the_last_token() -> None:
    assert due_s([one(last_s=2.0, itl_s=0.5), one(last_s=1.0, itl_s=3.0)], MEAN) == 2.5


def test_a_bound_on_the_mean_gives_credit_for_what_was_fast() -> None:
    # Four tokens after the first within 0.2 s at a mean of 0.1 s: the fifth may come 0.5 s after the first.
    fast = one(first_s=1.0, last_s=1.2, num_said=4, tpot_s=0.1)
    assert due_s([fast], MEAN) == pytest.approx(1.5)
    assert due_s([fast], Credit(is_mean=False)) == pytest.approx(1.3)
    assert due_s([fast], Credit(most_gap=2.0)) == pytest.approx(1.4)


def test_a_part_of_the_means_may_be_late_but_no_bound_on_gaps() -> None:
    slow = one(first_s=0.0, last_s=5.0, num_said=10, tpot_s=0.1)
    others = [one(first_s=4.0, last_s=5.0, num_said=10, tpot_s=0.2)] * 9
    assert soft_due_s([slow, *others], Credit(part=0.9)) == pytest.approx(6.2)
    assert soft_due_s([slow, slow, *others[:8]], Credit(part=0.9)) == pytest.approx(1.1)
    bounded = one(last_s=5.0, itl_s=0.25)
    assert due_s([bounded, *others], Credit(part=0.9)) == 5.25
    assert hard_due_s(others) == NEVER


def test_without_targets_a_step_may_take_for_ever() -> None:
    assert due_s([one(), one()], MEAN) == NEVER
    assert due_s([], MEAN) == NEVER


def test_lateness_is_one_when_a_step_ends_when_it_is_due() -> None:
    for sequences in ([one(last_s=2.0, itl_s=0.5)], [one(first_s=1.0, last_s=1.5, num_said=3, tpot_s=0.2)] * 7):
        assert lateness(sequences, due_s(sequences, MEAN), 1.0) == pytest.approx(1.0)
    assert lateness([], 9.0, 0.9) == 0.0
