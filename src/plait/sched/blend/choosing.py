"""Choosing: whether a job is blended or runs as it was given, by how long either is said to take.

Owns the comparison and its margin. Invariant: without a clear gain a job stays in the order in which it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from plait.core.errors import PlaitError
from plait.sched.blend.feeds import Feed, JobOrder, Ordering, feed_of, feed_over, outlook
from plait.sched.blend.forecast import Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import build_tree

CLEAR = 0.97
"""Of the time as given: what blending must stay below, for a forecast knows neither blocks nor real lengths."""

FEWEST, MOST = 64, 100_000
"""Requests of a job that is worth a look: fewer are soon done, and more would take memory that others need."""


class GivenUp(PlaitError):
    """Nobody wants the order of the job any more."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """How a job is blended, if it is, and the machine that says whether."""

    ordering: Ordering
    machine: Machine


AnyOrdering: TypeAlias = Ordering | Choosing


@dataclass(frozen=True, slots=True)
class Choice:
    """Which order a job of `num_requests` was given. Seconds are predictions, None where nothing was predicted."""

    order: JobOrder
    num_requests: int
    given_s: float | None = None
    blended_s: float | None = None

    @property
    def why(self) -> str:
        if self.given_s is None or self.blended_s is None:
            return f"{self.num_requests:,} lines are to run, and a forecast is made for {FEWEST:,} to {MOST:,}"
        times = f"blended {self.blended_s:,.3g} s, as given {self.given_s:,.3g} s"
        margin = "" if self.order is JobOrder.BLEND else f", and blending must stay below {CLEAR:.0%} of that"
        return f"the forecast says {times}{margin}"


def is_as_given(how: AnyOrdering | None, num_requests: int) -> bool:
    """Whether nothing has to be known about a job of so many requests."""
    if isinstance(how, Choosing):
        return not FEWEST <= num_requests <= MOST
    return how is None or how.order is JobOrder.INPUT


def feed_for(job: OfflineJob, how: AnyOrdering, go_on: Callable[[], None] = lambda: None) -> tuple[Feed, Choice | None]:
    """As `plait.sched.blend.feeds.feed_of`, and what was chosen if anything was. `go_on` is called again and again, and
    ends the work by raising.
    """
    if isinstance(how, Ordering):
        return feed_of(job, how, go_on), None
    num_requests, base = len(job), how.ordering
    tree = build_tree(job.prompts, go_on)
    look = outlook(job, tree, base.lives, job.known)
    outputs = [max(1, round(length)) for length in look.dense.loads.outputs]

    def seconds(order: JobOrder) -> float:
        go_on()
        feed = feed_over(tree, job, replace(base, order=order))
        return forecast(
            feed, tree, job.prompt_tokens, outputs, base.lives, how.machine, lambda compute, memory, count: go_on()
        ).seconds

    given_s, blended_s = seconds(JobOrder.INPUT), seconds(JobOrder.BLEND)
    go_on()
    job.prompts.clear()
    chosen = JobOrder.BLEND if blended_s < CLEAR * given_s else JobOrder.INPUT
    feed = feed_over(tree, job, replace(base, order=chosen))
    return feed, Choice(chosen, num_requests, given_s, blended_s)
