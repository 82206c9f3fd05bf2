"""Driver: runs real engines through a load in simulated time.

Owns the way of requests into the engines' inboxes, whose turn it is, and the end of the run: when everything has
arrived and been answered, every engine is closed. Decides nothing else; engines, schedulers and memory are those that
serve.
Invariant: an engine sees a request at exactly its arrival time, unless it is later by its own doing; engines whose
moments are equal take turns in the order of their numbers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from plait.core.clock import Clock, SimClock, WaitSource
from plait.core.errors import InvariantError, UsageError
from plait.core.events import Event, EventSink, Finished, Refused, TokenSink
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.engine.engine import Engine, Ports
from plait.engine.inbox import Arrive, Close, Inbox
from plait.engine.outbox import NullOutbox, Outbox
from plait.sim.arrivals import Arrival
from plait.sim.load import Load, TraceLoad
from plait.sim.report import Report, ReportBuilder

MakeEngine = Callable[[Clock, Ports], Engine]


class TurnClock:
    """The clock of one engine of several. To wait is to let the others go on: `wait` returns at once, and the engine is
    not ticked before `wake_s`.
    """

    def __init__(self, time: SimClock) -> None:
        self._time = time
        self.wake_s: float | None = time.now()
        """When the engine wants its next turn; None: not before something arrives."""

    def now(self) -> float:
        return self._time.now()

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        if any([source.ready() for source in sources]):
            self.wake_s = self.now()
            return
        moments = [moment for source in sources if (moment := source.next_s()) is not None]
        if until is not None:
            moments.append(until)
        self.wake_s = min(moments, default=None)


@dataclass(slots=True)
class Station:
    """An engine's place: its door and its clock."""

    clock: TurnClock
    inbox: Inbox = field(default_factory=Inbox)
    outbox: Outbox = field(default_factory=NullOutbox)

    def put(self, message: Arrive | Close) -> None:
        """It gets a turn now."""
        self.inbox.put(message)
        self.clock.wake_s = self.clock.now()


StationSink = Callable[[int, Event], None]
"""Told what happens at which station."""


class Dispatch(Protocol):
    """Who decides where requests are worked on. `receivers`: stations to which other stations send requests."""

    @property
    def receivers(self) -> frozenset[int]: ...

    def accept(self, request: Request) -> tuple[int, Request]:
        """The station of a new request, and what it is asked there."""

    def goes_on(self, station: int, event: Finished) -> bool:
        """Whether a sequence that ended at a station is continued at another. Changes nothing."""


class OneStation:
    """Everything is done at the first station."""

    receivers: frozenset[int] = frozenset()

    def accept(self, request: Request) -> tuple[int, Request]:
        return 0, request

    def goes_on(self, station: int, event: Finished) -> bool:
        return False


class Driver:
    """Stations under one clock, and a load. First engines are made for all `stations`, then it runs once."""

    def __init__(self, load: Load, num_stations: int, dispatch: Dispatch) -> None:
        self._load = load
        self._dispatch = dispatch
        self._time = SimClock()
        self.stations = [Station(TurnClock(self._time)) for _ in range(num_stations)]
        self._open: dict[RequestId, int] = {}
        """Answers still to come, by request."""
        self._on_its_way: list[tuple[float, int, int, Request]] = []
        """Requests that go on at another station: when, which of those sent, where, what. A heap."""
        self._num_sent = count()

    def now(self) -> float:
        return self._time.now()

    def ports(self, station: int, sinks: Sequence[StationSink], tokens: TokenSink | None = None) -> Ports:
        """For the engine of a station; its events go to `sinks` too, those of tokens to `tokens` if it is there."""

        def tell(event: Event) -> None:
            for sink in sinks:
                sink(station, event)
            if isinstance(event, Finished | Refused):
                self._note(station, event)

        place = self.stations[station]
        return Ports(place.inbox, place.outbox, tell, tokens=tokens)

    def horizon(self, station: int) -> float:
        """Before when nothing will arrive at a station. If other engines send requests there, or the load waits for
        answers, this may be as soon as one of them has its next turn.
        """
        moments = [self._load.next_s()]
        if not self._load.is_open or station in self._dispatch.receivers:
            moments += [other.clock.wake_s for place, other in enumerate(self.stations) if place != station]
            moments += [at_s for at_s, *_ in self._on_its_way[:1]]
        return min([moment for moment in moments if moment is not None], default=math.inf)

    def send(self, request: Request, station: int, at_s: float) -> None:
        """A request goes on at a station, from then on."""
        heapq.heappush(self._on_its_way, (at_s, next(self._num_sent), station, request))

    def run(self, engines: Sequence[Engine]) -> None:
        """Until the last answer. `engines[i]` stands at `stations[i]`."""
        self._deliver()
        self._take_turns(engines)
        while (at_s := self._next_s()) is not None:
            self._time.wait(until=at_s)
            self._deliver()
            self._take_turns(engines)
        if self._open:
            raise InvariantError(f"simulated time cannot move on, but {len(self._open)} requests wait for answers")
        for station, engine in zip(self.stations, engines, strict=True):
            station.put(Close())
            engine.tick()

    def _next_s(self) -> float | None:
        """When the next thing happens, if anything is left to be done."""
        next_s = self._load.next_s()
        if next_s is None and not self._open:
            return None
        moments = [station.clock.wake_s for station in self.stations] + [next_s]
        if self._on_its_way:
            moments.append(self._on_its_way[0][0])
        return min([moment for moment in moments if moment is not None], default=None)

    def _deliver(self) -> None:
        """Everything that is due."""
        now = self.now()
        while self._on_its_way and self._on_its_way[0][0] <= now:
            _, _, station, request = heapq.heappop(self._on_its_way)
            self.stations[station].put(Arrive(request))
        while (at_s := self._load.next_s()) is not None and at_s <= now:
            request = self._load.take().request
            if request.id in self._open:
                raise UsageError(f"two requests with id {request.id!r} at once; give every request of a load its own")
            self._open[request.id] = request.n
            place, asked = self._dispatch.accept(request)
            self.stations[place].put(Arrive(asked))

    def _take_turns(self, engines: Sequence[Engine]) -> None:
        now = self.now()
        for station, engine in zip(self.stations, engines, strict=True):
            if station.clock.wake_s is not None and station.clock.wake_s <= now:
                engine.tick()

    def _note(self, station: int, event: Finished | Refused) -> None:
        request = event.request
        if isinstance(event, Finished):
            if self._dispatch.goes_on(station, event):
                return
            self._open[request] -= 1
            if self._open[request] > 0:
                return
        self._end(request, event.at_s)

    def _end(self, request: RequestId, at_s: float) -> None:
        del self._open[request]
        self._load.ended(request, at_s)


def simulate(arrivals: Iterable[Arrival], make_engine: MakeEngine, events: EventSink | None = None) -> Report:
    """Run a trace through one engine to its last answer. `events` may listen too."""
    report = ReportBuilder()
    driver = Driver(TraceLoad(arrivals), 1, OneStation())
    sinks: list[StationSink] = [lambda station, event: report(event)]
    if events is not None:
        listen = events
        sinks.append(lambda station, event: listen(event))
    driver.run([make_engine(driver.stations[0].clock, driver.ports(0, sinks))])
    return report.report()
