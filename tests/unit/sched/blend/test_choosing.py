"""Choosing: blended where a forecast says that it is clearly shorter, as given otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.sched.blend.choosing import AS_GOOD, FEWEST, MOST, Choosing, GivenUp, feed_for, is_as_given
from plait.sched.blend.feeds import BlendFeed, FixedFeed, JobOrder, Ordering
from plait.sched.blend.forecast import Machine
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import packed

MEMORY = 5e4
CHOOSING = Choosing(
    Ordering(JobOrder.BLEND, EvenLives(), MEMORY, ahead=4, holds_once=True),
    Machine(MEMORY, 512, tells=False, weights_s=2e-3, block_tokens=10, in_flight=128),
)


def job(num_subjects: int) -> OfflineJob:
    """Questions on so many subjects in turn: what they share does not stay where memory holds four of them."""
    found = OfflineJob()
    for place in range(200):
        found.add(packed((place % num_subjects + 1,) * 100 + (0, place)), 102, 2)
    return found


def with_long_answers() -> OfflineJob:
    """At the end of the input, where nothing else is left to compute beside them."""
    found = job(20)
    for place in range(12):
        found.known[found.add(packed((300 + place, 1)), 2, 60)] = 60
    return found


@pytest.mark.parametrize(
    ("given", "memory_bytes", "order"),
    [
        (job(1), MEMORY, JobOrder.INPUT),
        (job(20), MEMORY, JobOrder.BLEND),
        (with_long_answers(), 20 * MEMORY, JobOrder.BLEND),
        (job(200), MEMORY, JobOrder.INPUT),
    ],
)
def test_a_job_runs_in_the_shortest_order(given: OfflineJob, memory_bytes: float, order: JobOrder) -> None:
    num_requests = len(given)
    base, machine = CHOOSING.ordering, CHOOSING.machine
    choosing = Choosing(replace(base, memory_bytes=memory_bytes), replace(machine, memory_bytes=memory_bytes))
    feed, choice = feed_for(given, choosing)
    assert type(feed) is (BlendFeed if order is JobOrder.BLEND else FixedFeed)
    assert feed.num_left == num_requests
    assert choice is not None
    told = choice.seconds
    assert choice.order is order
    assert told[choice.order] <= AS_GOOD * min(told.values())
    assert order is JobOrder.INPUT or told[choice.order] < told[JobOrder.INPUT]
    assert f"input {told[JobOrder.INPUT]:,.3g} s, blend {told[JobOrder.BLEND]:,.3g} s" in choice.why


def test_whoever_waits_for_a_choice_may_give_it_up_at_any_moment() -> None:
    """A stop is seen soon: `go_on` is asked for every prompt and every step, and may end it at each."""
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    feed_for(job(20), CHOOSING, count)
    assert asked > 200 + 100

    for most in (0, 100, 250, asked - 1):
        left = iter(range(most))

        def give_up(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise GivenUp("enough")

        with pytest.raises(GivenUp, match="enough"):
            feed_for(job(20), CHOOSING, give_up)


def test_what_is_chosen_by_name_is_taken() -> None:
    feed, choice = feed_for(job(1), CHOOSING.ordering)
    assert (type(feed), choice) == (BlendFeed, None)


def test_small_and_huge_jobs_are_not_looked_at() -> None:
    assert [is_as_given(CHOOSING, count) for count in (FEWEST - 1, FEWEST, MOST, MOST + 1)] == [
        True,
        False,
        False,
        True,
    ]
    assert is_as_given(None, FEWEST)
    assert is_as_given(Ordering(JobOrder.INPUT, EvenLives(), MEMORY), FEWEST)
    assert not is_as_given(CHOOSING.ordering, 1)
