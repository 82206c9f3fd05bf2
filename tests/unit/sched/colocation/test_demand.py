"""What is kept for a burst: p99 of the last ten minutes, and one newcomer."""

from __future__ import annotations

from plait.sched.colocation.demand import OnlineDemand


def test_nobody_online_keeps_room_for_one_newcomer() -> None:
    assert OnlineDemand(1000, 100).kept == 100


def test_never_more_than_three_quarters_are_kept() -> None:
    demand = OnlineDemand(1000, 900)
    assert demand.kept == 750


def test_the_most_of_every_second_counts_when_it_has_ended() -> None:
    demand = OnlineDemand(10_000, 100)
    for place in range(10):
        demand.sample(500, 0.1 * place)
    demand.sample(700, 0.95)
    assert demand.kept == 100
    demand.sample(0, 1.0)
    assert demand.kept == 800


def test_one_second_in_a_hundred_may_hold_more() -> None:
    demand = OnlineDemand(10_000, 0)
    for second in range(301):
        demand.sample(5000 if second in (10, 20) else 400, float(second))
    assert demand.kept == 400
    for second in range(301, 602):
        demand.sample(5000 if second % 10 == 0 else 400, float(second))
    assert demand.kept == 5000


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    demand = OnlineDemand(10_000, 0)
    for second in range(100):
        demand.sample(3000, float(second))
    demand.sample(0, 100.0)
    assert demand.kept == 3000
    # Nobody looks while nothing happens: the last sample holds.
    demand.sample(0, 800.0)
    assert demand.kept == 0
