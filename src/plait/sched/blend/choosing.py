"""Choosing: whether a job is blended or runs as it was given, by how long either is said to take.

Owns the comparison and its margin. Invariant: without a clear gain a job stays in the order in which it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from plait.sched.blend.feeds import Feed, JobOrder, Ordering, feed_of, feed_over, outlook
from plait.sched.blend.forecast import Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import build_tree

CLEAR = 0.97
"""Of the time as given: what blending must stay below, for a forecast knows neither blocks nor real lengths."""

FEWEST, MOST = 64, 100_000
"""Requests of a job that is worth a look: fewer are soon done, and more would take memory that others need."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """How a job is blended, if it is, and the machine that says whether."""

    ordering: Ordering
    machine: Machine


AnyOrdering: TypeAlias = Ordering | Choosing


def is_as_given(how: AnyOrdering | None, num_requests: int) -> bool:
    """Whether nothing has to be known about a job of so many requests."""
    if isinstance(how, Choosing):
        return not FEWEST <= num_requests <= MOST
    return how is None or how.order is JobOrder.INPUT


def feed_for(job: OfflineJob, how: AnyOrdering) -> Feed:
    """As `plait.sched.blend.feeds.feed_of`."""
    if isinstance(how, Ordering):
        return feed_of(job, how)
    tree, base = build_tree(job.prompts), how.ordering
    look = outlook(job, tree, base.lives, job.known)
    outputs = [max(1, round(length)) for length in look.dense.loads.outputs]
    orders = (replace(base, order=JobOrder.INPUT), replace(base, order=JobOrder.BLEND))
    given_s, blended_s = (
        forecast(feed_over(tree, job, one), tree, job.prompt_tokens, outputs, base.lives, how.machine).seconds
        for one in orders
    )
    job.prompts.clear()
    return feed_over(tree, job, orders[blended_s < CLEAR * given_s])
