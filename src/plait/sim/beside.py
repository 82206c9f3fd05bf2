"""Beside: online arrivals and an offline job in one load, and what either of them saw.

Owns the merging of the two, and reports by class. The online side comes on until the job has ended, so that the job
is beside it from its first to its last request; what arrived by then is answered.
Invariant: whose request it is decides whose report it is in, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from plait.core.events import Arrived, Emitted, Event, Finished, Refused, Scheduled
from plait.core.ids import RequestId, SeqId
from plait.core.request import ServiceClass
from plait.sim.arrivals import Arrival
from plait.sim.offline import OfflineLoad
from plait.sim.report import Report, ReportBuilder


class BesideLoad:
    """Implements `plait.sim.load.Load`. `online` never ends; a job of None is never there."""

    def __init__(self, online: Iterator[Arrival], job: OfflineLoad | None, until_s: float = float("inf")) -> None:
        self._online = online
        self._job = job
        self._until_s = until_s
        self._next = next(online, None)
        self._offline: set[RequestId] = set()

    @property
    def is_open(self) -> bool:
        return False

    def next_s(self) -> float | None:
        moments = [moment for moment in (self._online_s(), self._job_s()) if moment is not None]
        return min(moments, default=None)

    def _online_s(self) -> float | None:
        has_ended = self._next is None or self._next.at_s > self._until_s
        if has_ended or self._next is None or (self._job is not None and self._job.has_ended):
            return None
        return self._next.at_s

    def _job_s(self) -> float | None:
        return None if self._job is None else self._job.next_s()

    def take(self) -> Arrival:
        online_s, job_s = self._online_s(), self._job_s()
        if self._job is not None and job_s is not None and (online_s is None or job_s < online_s):
            arrival = self._job.take()
            self._offline.add(arrival.request.id)
            return arrival
        assert self._next is not None
        taken, self._next = self._next, next(self._online, None)
        return taken

    def ended(self, request: RequestId, at_s: float) -> None:
        if self._job is not None and request in self._offline:
            self._offline.remove(request)
            self._job.ended(request, at_s)


class ByClass:
    """Events of one engine without runs of steps, as a report of each class. `Collected` tells of both together and is
    left out.
    """

    def __init__(self) -> None:
        self._builders: Mapping[ServiceClass, ReportBuilder] = {one: ReportBuilder() for one in ServiceClass}
        self._class_of: dict[SeqId, ServiceClass] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._class_of[event.seq] = event.service_class
        if isinstance(event, Arrived | Scheduled | Emitted | Finished):
            self._builders[self._class_of[event.seq]](event)
            if isinstance(event, Finished):
                del self._class_of[event.seq]
        elif isinstance(event, Refused):
            self._builders[ServiceClass.ONLINE](event)

    def report(self, service_class: ServiceClass) -> Report:
        return self._builders[service_class].report()
