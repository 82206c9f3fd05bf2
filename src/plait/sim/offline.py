"""Offline: a load whose requests are all there from the start and go to the engines in the order of a feed.

Owns which requests are with the engines: as many as the feed lets go, and no more than so many at once. The order
itself is `plait.sched.blend.feeds`'s, as it is for a batch that is served.
Invariant: every request is taken once; how long an answer becomes is known to the feed only when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.core.errors import InvariantError, UsageError
from plait.core.ids import RequestId
from plait.core.request import Request, Slo
from plait.cost.hardware import HardwareSpec
from plait.cost.lifetime import LifetimeCost
from plait.model.cost import Formats
from plait.model.program import Program
from plait.model.shard import shard
from plait.sched.blend.feeds import JobOrder, Ordering, feed_of
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import packed
from plait.sim.arrivals import Arrival
from plait.sim.cluster import ClusterSpec
from plait.sim.workload import Workload

AHEAD = 2
"""Requests with an engine for each that it can run at once: some wait, so that it never does."""


class OfflineLoad:
    """Implements `plait.sim.load.Load`. `job`: what the feed is told of the requests, in their order; `idle_ratio`:
    what others leave idle at a time, as `plait.sched.colocation.idle` says it.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        ordering: Ordering,
        job: OfflineJob,
        max_in_flight: int,
        idle_ratio: Callable[[float], float] | None = None,
    ) -> None:
        self._requests = requests
        self._places = {request.id: place for place, request in enumerate(requests)}
        self._feed = feed_of(job, ordering)
        self._max_in_flight = max_in_flight
        self._idle_ratio = idle_ratio
        self._in_flight = 0
        self._now_s = 0.0
        self._next: int | None = None

    @property
    def is_open(self) -> bool:
        return False

    @property
    def has_ended(self) -> bool:
        """Everything was taken and answered."""
        return not (self._in_flight or self._feed.num_left or self._next is not None)

    def next_s(self) -> float | None:
        if self._next is None and self._in_flight < self._max_in_flight:
            if self._idle_ratio is not None:
                self._feed.beside(self._idle_ratio(self._now_s))
            self._next = self._feed.next()
        return None if self._next is None else self._now_s

    def take(self) -> Arrival:
        if self.next_s() is None or self._next is None:
            raise InvariantError("a load that has nothing due is asked for a request")
        request, self._next = self._requests[self._next], None
        self._in_flight += 1
        return Arrival(self._now_s, request)

    def ended(self, request: RequestId, at_s: float) -> None:
        place = self._places[request]
        self._in_flight -= 1
        self._now_s = max(self._now_s, at_s)
        self._feed.ended(place, self._requests[place].sampling.max_tokens or 0)


def offline_load(workload: Workload, spec: ClusterSpec, slo: Slo, order: JobOrder, seed: int) -> OfflineLoad:
    """All requests of a workload at once, whenever they came. `UsageError` if some wait for answers of others."""
    extent, replica = workload.extent, spec.replica
    if extent.num_openings < extent.num_requests:
        raise UsageError("requests of this trace wait for answers to others, so they cannot all be there at once")
    load = workload.load(replica.program.vocab_size, slo, replica.max_model_tokens)
    requests = []
    while load.next_s() is not None:
        requests.append(load.take().request)
    job = OfflineJob()
    for request in requests:
        job.add(packed(request.prompt), len(request.prompt), max(1, replica.max_model_tokens - len(request.prompt)))
    ranks = replica.tensor_parallel
    lives = lives_on(replica.hardware, shard(replica.program, ranks), replica.formats)
    ordering = Ordering(order, lives, spec.form.num_engines * replica.cache_bytes, seed)
    in_flight = AHEAD * replica.max_rows * spec.form.num_first
    return OfflineLoad(requests, ordering, job, in_flight)


def lives_on(hardware: HardwareSpec, program: Program, formats: Formats) -> LifetimeCost:
    """By the rates of a whole device."""
    units = hardware.share_units
    return LifetimeCost(
        program, formats, lambda numbers: hardware.compute_rate(units, numbers), hardware.memory_rate(units)
    )
