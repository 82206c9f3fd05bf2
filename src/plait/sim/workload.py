"""Workloads: requests of a trace or a card, laid out in time, as a load for engines.

Owns the pace: how fast a trace is played, how often it is repeated, how arrivals are drawn where there are none, and
sessions whose requests wait for answers. Knows no engine.
Invariant: equal sources, paces and seeds give equal loads; memory grows with open sessions and not with requests.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import Protocol

from plait.core.errors import InvariantError, UsageError
from plait.core.ids import RequestId
from plait.core.request import Request, Slo
from plait.core.sampling import SamplingParams
from plait.sim.arrivals import Arrival
from plait.sim.load import Load, TraceLoad
from plait.sim.prompts import prompt_of
from plait.sim.traces.fields import MOST_SECONDS
from plait.sim.traces.request import MAX_TOKENS, TraceRequest

LEAST_SPAN_S = 1e-6
"""Requests of a shorter time come all at once: nobody can say at which rate."""
_ROUND_BITS = 62
"""Blocks of a repeated trace are other blocks: nobody asks the same thing twice because we do."""


class Source(Protocol):
    def requests(self) -> Iterator[TraceRequest]:
        """All of them, the same each time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`rate`: requests a second, or sessions where requests wait for answers; None: as recorded. `speed` 2 plays a
    record twice as fast. `requests`: how many; a shorter trace is repeated; None: each once.
    """

    rate: float | None = None
    speed: float = 1.0
    requests: int | None = None
    length_divisor: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Extent:
    """What one pass over a source finds."""

    num_requests: int
    num_openings: int
    """Requests that wait for no answer."""
    span_s: float
    """From the first arrival to the last; 0: all at once."""
    has_times: bool
    num_prompt: int
    num_output: int

    @property
    def gap_s(self) -> float:
        """The mean time between arrivals; 1 if there is no telling."""
        return self.span_s / (self.num_openings - 1) if self.num_openings > 1 and self.span_s > 0 else 1.0

    @property
    def rate(self) -> float | None:
        """Arrivals a second as recorded; None: not recorded, or all at once."""
        return 1 / self.gap_s if self.has_times and self.span_s > 0 else None


def measure(source: Source) -> Extent:
    """Read a source once. `UsageError` if it is empty or says times for some of its requests only."""
    requests = openings = prompt = output = 0
    first_s = last_s = None
    for request in source.requests():
        requests, prompt, output = requests + 1, prompt + request.num_prompt, output + request.num_output
        if request.think_s is not None:
            continue
        openings += 1
        if openings == 1:
            first_s = request.at_s
        last_s = request.at_s
        if (first_s is None) != (request.at_s is None):
            has = "has no" if request.at_s is None else "has an"
            raise UsageError(
                f"request {requests} of the trace {has} arrival time, unlike those before it; give times to all "
                "or to none"
            )
    if not requests:
        raise UsageError("the trace holds no request; it needs at least one")
    span_s = 0.0 if first_s is None or last_s is None else last_s - first_s
    span_s = span_s if span_s >= LEAST_SPAN_S else 0.0
    return Extent(requests, openings, span_s, first_s is not None, prompt, output)


@dataclass(frozen=True, slots=True)
class Workload:
    """A source at a pace."""

    source: Source
    extent: Extent
    pace: Pace

    def __post_init__(self) -> None:
        if not self.extent.has_times and self.pace.rate is None:
            raise UsageError("the trace says no arrival times; give --rate R, in requests a second")

    @property
    def num_requests(self) -> int:
        return self.pace.requests or self.extent.num_requests

    def load(self, vocab_size: int, slo: Slo, max_tokens: int = MAX_TOKENS) -> Load:
        """A new load of these requests. `slo` holds for each of them. A prompt of more than `max_tokens`, which nobody
        can serve, is made a token longer than that and no more.
        """
        maker = _Maker(vocab_size, slo, max_tokens + 1)
        if self.extent.num_openings < self.extent.num_requests:
            return SessionLoad(self._groups(), maker)
        return TraceLoad(Arrival(at_s, maker.request(requests[0])) for at_s, requests in self._groups())

    def _groups(self) -> Iterator[tuple[float, list[TraceRequest]]]:
        """Moments, in order, with what begins then: one request, or a session's."""
        left = self.num_requests
        drawn = self._drawn_moments()
        for round_ in count():
            start_s: float | None = None
            for requests in _sessions(self.source.requests()):
                if left <= 0:
                    return
                kept = [_fitted(one, round_, self.pace.length_divisor) for one in requests[:left]]
                left -= len(kept)
                if drawn is None:
                    recorded_s = kept[0].at_s or 0.0
                    start_s = recorded_s if start_s is None else start_s
                    shift_s = round_ * (self.extent.span_s + self.extent.gap_s)
                    at_s = (recorded_s - start_s + shift_s) / self._speed()
                else:
                    at_s = next(drawn)
                if at_s > MOST_SECONDS:
                    raise UsageError(
                        f"a request would come after {at_s:.3g} s, and simulated time ends at {MOST_SECONDS:g}; play "
                        "the trace faster with --rate or --speed"
                    )
                yield at_s, kept
            if left <= 0:
                return

    def _speed(self) -> float:
        rate = self.extent.rate
        return self.pace.speed if self.pace.rate is None or rate is None else self.pace.rate / rate

    def _drawn_moments(self) -> Iterator[float] | None:
        """Independent arrivals, for sources that say none or one moment for all; None: the source's own are taken."""
        if self.pace.rate is None or self.extent.rate is not None:
            return None
        return _poisson(self.pace.rate, self.pace.seed)


def _poisson(rate: float, seed: int) -> Iterator[float]:
    rng, at_s = random.Random(f"arrivals {seed}"), 0.0
    while True:
        at_s += rng.expovariate(rate)
        yield at_s


def _sessions(requests: Iterator[TraceRequest]) -> Iterator[list[TraceRequest]]:
    """Each request alone, but those that wait for an answer with the one that begins their session."""
    for _, found in groupby(requests, key=_Beginnings()):
        yield list(found)


class _Beginnings:
    """The number of the last request that waits for nothing."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, request: TraceRequest) -> int:
        self._count += request.think_s is None
        return self._count


def _fitted(request: TraceRequest, round_: int, divisor: int) -> TraceRequest:
    request = request.divided(divisor)
    if not round_ or not request.blocks:
        return request
    return replace(request, blocks=tuple(name + (round_ << _ROUND_BITS) for name in request.blocks))


class _Maker:
    """Makes requests of trace requests, numbered as they come."""

    def __init__(self, vocab_size: int, slo: Slo, most_tokens: int) -> None:
        self._vocab_size, self._slo, self._most_tokens, self._count = vocab_size, slo, most_tokens, count()

    def request(self, one: TraceRequest) -> Request:
        """Exactly the lengths that are asked for."""
        index = next(self._count)
        return Request(
            id=RequestId(f"trace-{index}"),
            prompt=prompt_of(
                min(one.num_prompt, self._most_tokens), one.blocks, one.block_tokens, index, self._vocab_size
            ),
            sampling=SamplingParams(seed=index, max_tokens=one.num_output, ignore_eos=True),
            tenant=one.client,
            slo=self._slo,
            # Where nothing is known to be in common nothing will be found, so that nothing need be looked for.
            cache_prefix=bool(one.blocks),
        )


class SessionLoad:
    """A load whose requests may wait for answers: each session's next one comes its pause after the last answer."""

    def __init__(self, groups: Iterator[tuple[float, list[TraceRequest]]], maker: _Maker) -> None:
        self._groups = groups
        self._maker = maker
        self._opening = next(groups, None)
        self._due: list[tuple[float, int, list[TraceRequest]]] = []
        """Moments at which sessions go on, with what they have left. A heap, the earlier entry first."""
        self._entries = count()
        self._open: dict[RequestId, list[TraceRequest]] = {}
        """What is left of the session of an unanswered request."""

    @property
    def is_open(self) -> bool:
        return False

    def next_s(self) -> float | None:
        moments = [self._opening[0]] if self._opening is not None else []
        moments += [self._due[0][0]] if self._due else []
        return min(moments, default=None)

    def take(self) -> Arrival:
        at_s = self.next_s()
        if at_s is None:
            raise InvariantError("a load that has nothing due is asked for a request")
        if self._due and self._due[0][0] == at_s:
            _, _, requests = heapq.heappop(self._due)
        else:
            assert self._opening is not None
            _, requests = self._opening
            self._opening = next(self._groups, None)
        request = self._maker.request(requests[0])
        if requests[1:]:
            self._open[request.id] = requests[1:]
        return Arrival(at_s, request)

    def ended(self, request: RequestId, at_s: float) -> None:
        left = self._open.pop(request, None)
        if left is not None:
            heapq.heappush(self._due, (at_s + (left[0].think_s or 0.0), next(self._entries), left))


@dataclass(frozen=True, slots=True)
class CardSource:
    """So many requests of a card."""

    draw: CardDraw
    num_requests: int
    seed: int

    def requests(self) -> Iterator[TraceRequest]:
        found = self.draw.requests(self.seed)
        for _ in range(self.num_requests):
            yield next(found)


class CardDraw(Protocol):
    def requests(self, seed: int) -> Iterator[TraceRequest]:
        """Requests without end."""
