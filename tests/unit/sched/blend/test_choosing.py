"""Choosing: blended where a forecast says that it is clearly shorter, as given otherwise."""

from __future__ import annotations

import pytest
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.sched.blend.choosing import FEWEST, MOST, Choosing, feed_for, is_as_given
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
    feed = feed_for(job(num_subjects), CHOOSING)
    assert type(feed) is kind
    assert feed.num_left == 200


def test_what_is_chosen_by_name_is_taken() -> None:
    assert isinstance(feed_for(job(1), CHOOSING.ordering), BlendFeed)


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
