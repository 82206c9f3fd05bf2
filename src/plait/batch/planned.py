"""Planned: what a run has to do altogether, where all its lines were looked at before the first one ran.

Owns the sums. In an order other than the input's, lines to come are not like those that came: the short ones may stand
first, and the beginnings that many share.
Invariant: counts lines that will run; who is refused or told another line's answer costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.core.request import Request
from plait.sched.blend.choosing import AnyOrdering, Choosing
from plait.sched.blend.job import OfflineJob, StepCosts


@dataclass(frozen=True, slots=True)
class Planned:
    """`computed_tokens` of prompts, without those that will be found in the cache; None: as of those that came."""

    prompt_tokens: int
    known_tokens: int = 0
    """Output tokens of lines that cannot say less."""
    limits: Mapping[int, int] = field(default_factory=dict)
    """Lines by how many output tokens they may have at most, if they may have less."""
    computed_tokens: int | None = None
    costs: StepCosts | None = None
    """Of a machine like this one."""
    rows: int = 0
    """That fit into a step and into memory, if anybody knows."""


def planned(job: OfflineJob, ordering: AnyOrdering) -> Planned:
    """Of a job whose order was found."""
    prompts, known = sum(job.prompt_tokens), sum(job.known.values())
    limits = Counter(most for place, most in enumerate(job.most) if place not in job.known)
    base = ordering.ordering if isinstance(ordering, Choosing) else ordering
    computed = None if job.found_tokens is None else prompts - job.found_tokens
    if base.costs is None or not len(job):
        return Planned(prompts, known, limits, computed)
    prompt, limit = (round(tokens / len(job)) for tokens in (prompts, sum(job.most)))
    # In the middle of its answer.
    costs = base.costs(prompt + limit // 2)
    held_bytes = base.lives.mean_held_bytes(prompt, limit)
    rows = min(costs.rows, int(base.memory_bytes / held_bytes) if held_bytes else costs.rows)
    return Planned(prompts, known, limits, computed, costs, rows)


def says_all(request: Request) -> bool:
    """Whether it says as much as it may, whatever the model thinks."""
    sampling = request.sampling
    cannot_stop = sampling.ignore_eos and not sampling.stop and not sampling.stop_token_ids
    return sampling.max_tokens is not None and (cannot_stop or sampling.min_tokens == sampling.max_tokens)
