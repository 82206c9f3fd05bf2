"""Spread: requests whose recorder had a coarse clock, laid out evenly over each of its ticks.

Owns that one rule: the requests of one moment are spread over the time to the next moment, at most one tick. Order
stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from plait.sim.traces.request import TraceRequest


def spread(requests: Iterable[TraceRequest], tick_s: float) -> Iterator[TraceRequest]:
    """`requests` in order of time, all with a time. Holds the requests of one moment."""
    moment: list[TraceRequest] = []
    for request in requests:
        if moment and request.at_s != moment[0].at_s:
            yield from _laid_out(moment, min(tick_s, (request.at_s or 0.0) - (moment[0].at_s or 0.0)))
            moment = []
        moment.append(request)
    yield from _laid_out(moment, tick_s)


def _laid_out(moment: list[TraceRequest], width_s: float) -> Iterator[TraceRequest]:
    for place, request in enumerate(moment):
        yield replace(request, at_s=(request.at_s or 0.0) + width_s * place / len(moment))
