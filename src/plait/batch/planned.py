"""Planned: what a run has to do altogether, where all its lines were looked at before the first one ran.

Owns the sums. In an order other than the input's, lines to come are not like those that came: the short ones may stand
first, and the beginnings that many share.
Invariant: counts lines that will run; who is refused or told another line's answer costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.sched.blend.choosing import AnyOrdering, Choosing
from plait.sched.blend.job import OfflineJob, StepCosts


@dataclass(frozen=True, slots=True)
class Planned:
    """`computed_tokens` of prompts, without those that will be found in the cache; None: as of those that came."""

    prompt_tokens: int
    limit_tokens: int
    """Output tokens at most."""
    computed_tokens: int | None = None
    costs: StepCosts | None = None
    """Of a machine like this one."""


def planned(job: OfflineJob, ordering: AnyOrdering) -> Planned:
    """Of a job whose order was found."""
    prompts, limits = sum(job.prompt_tokens), sum(job.most)
    base = ordering.ordering if isinstance(ordering, Choosing) else ordering
    costs = None
    if base.costs is not None and len(job):
        # In the middle of its answer.
        costs = base.costs(round((prompts + limits / 2) / len(job)))
    return Planned(prompts, limits, None if job.found_tokens is None else prompts - job.found_tokens, costs)
