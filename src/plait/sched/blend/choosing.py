"""Choosing: in which order a job runs, by how long each is said to take.

Owns the comparison and its margin. Invariant: without a clear gain a job stays in the order in which it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from plait.core.errors import PlaitError
from plait.sched.blend.feeds import Feed, JobOrder, Ordering, feed_over, outlook
from plait.sched.blend.forecast import Forecast, Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import build_tree

AS_GOOD = 1.01
"""Forecasts are no closer than that: of orders whose times differ by less the first of `CHOICES` is taken."""

CHOICES = (JobOrder.BLEND, JobOrder.BFS, JobOrder.DENSITY, JobOrder.DFS)
"""Besides the order of the input, which only one that is said to be shorter replaces."""

FEWEST, MOST = 64, 100_000
"""Requests of a job that is worth a look: fewer are soon done, and more would take memory that others need."""


class GivenUp(PlaitError):
    """Nobody wants the order of the job any more."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """How a job is ordered, whatever the order, and the machine that says which."""

    ordering: Ordering
    machine: Machine


AnyOrdering: TypeAlias = Ordering | Choosing


@dataclass(frozen=True, slots=True)
class Choice:
    """Which order a job of `num_requests` was given, and the seconds that were predicted for each, if any were."""

    order: JobOrder
    num_requests: int
    seconds: Mapping[JobOrder, float] = field(default_factory=dict)

    @property
    def why(self) -> str:
        if not self.seconds:
            return f"{self.num_requests:,} lines are to run, and a forecast is made for {FEWEST:,} to {MOST:,}"
        times = ", ".join(f"{order} {seconds:,.3g} s" for order, seconds in self.seconds.items())
        return f"the forecast says {times}"


def is_as_given(how: AnyOrdering | None, num_requests: int) -> bool:
    """Whether nothing has to be known about a job of so many requests."""
    if isinstance(how, Choosing):
        return not FEWEST <= num_requests <= MOST
    return how is None or how.order is JobOrder.INPUT


def feed_for(job: OfflineJob, how: AnyOrdering, go_on: Callable[[], None] = lambda: None) -> tuple[Feed, Choice | None]:
    """As `plait.sched.blend.feeds.feed_of`, and what was chosen if anything was. `go_on` is called again and again, and
    ends the work by raising. The job is told how much of its prompts is expected to be found again.
    """
    tree = build_tree(job.prompts, go_on)
    if isinstance(how, Ordering):
        job.prompts.clear()
        job.found_tokens = None if how.order is JobOrder.RANDOM else tree.num_shareable()
        return feed_over(tree, job, how), None
    num_requests, base = len(job), how.ordering
    look = outlook(job, tree, base.lives, job.known)
    outputs = [max(1, round(length)) for length in look.dense.loads.outputs]

    def foretold(order: JobOrder) -> Forecast:
        go_on()
        feed = feed_over(tree, job, replace(base, order=order), look.dense)
        return forecast(
            feed, tree, job.prompt_tokens, outputs, base.lives, how.machine, lambda compute, memory, count: go_on()
        )

    told = {order: foretold(order) for order in (JobOrder.INPUT, *CHOICES)}
    go_on()
    job.prompts.clear()
    seconds = {order: one.seconds for order, one in told.items()}
    chosen = chosen_of(seconds)
    job.found_tokens = told[chosen].found_tokens
    feed = feed_over(tree, job, replace(base, order=chosen), look.dense)
    return feed, Choice(chosen, num_requests, seconds)


def chosen_of(seconds: Mapping[JobOrder, float]) -> JobOrder:
    """By the predicted seconds of the input's order and of `CHOICES`."""
    least = min(seconds[order] for order in CHOICES)
    chosen = next(order for order in CHOICES if seconds[order] <= AS_GOOD * least)
    return chosen if seconds[chosen] < seconds[JobOrder.INPUT] else JobOrder.INPUT
