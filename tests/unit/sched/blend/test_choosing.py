"""Choosing: blended where a forecast says that it is clearly shorter, as given otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.sched.blend.choosing import CLEAR, FEWEST, MOST, Choosing, GivenUp, feed_for, is_as_given
from plait.sched.blend.feeds import BlendFeed, FixedFeed, JobOrder, Ordering
from plait.sched.blend.forecast import Machine
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import packed

MEMORY = 5e4
CHOOSING = Choosing(Ordering(JobOrder.BLEND, EvenLives(), MEMORY), Machine(MEMORY, 512, tells=False))


def job(num_subjects: int) -> OfflineJob:
    """Questions on so many subjects in turn: what they share does not stay where memory holds four of them."""
    found = OfflineJob()
    for place in range(200):
        found.add(packed((place % num_subjects + 1,) * 100 + (0, place)), 102, 2)
    return found


@pytest.mark.parametrize(("num_subjects", "kind"), [(1, FixedFeed), (20, BlendFeed), (200, FixedFeed)])
def test_a_job_is_blended_where_that_is_shorter(num_subjects: int, kind: type[object]) -> None:
    feed, choice = feed_for(job(num_subjects), CHOOSING)
    assert type(feed) is kind
    assert feed.num_left == 200
    assert choice is not None
    assert choice.given_s is not None
    assert choice.blended_s is not None
    assert (choice.order is JobOrder.BLEND) == (kind is BlendFeed) == (choice.blended_s < CLEAR * choice.given_s)
    assert f"{choice.blended_s:,.3g} s, as given {choice.given_s:,.3g} s" in choice.why


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
