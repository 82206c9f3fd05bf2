"""Driver: runs the real engine through a trace in simulated time.

Owns the arrivals' way into the inbox and the end of the run: when everything has arrived and been answered, the
engine is closed. Decides nothing else; the engine, scheduler and memory are those that serve.
Invariant: the engine sees a request at exactly its arrival time, unless it is later by its own doing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from plait.core.clock import Clock, SimClock, WaitSource
from plait.core.errors import InvariantError
from plait.core.events import Event, EventSink, Finished, Refused
from plait.core.ids import RequestId
from plait.engine.engine import Engine, Ports
from plait.engine.inbox import Arrive, Close, Inbox
from plait.engine.outbox import NullOutbox
from plait.sim.arrivals import Arrival
from plait.sim.report import Report, ReportBuilder

MakeEngine = Callable[[Clock, Ports], Engine]


class ArrivalSource:
    """A `WaitSource` that is ready when the next request is due. Also an `EventSink`: it counts open answers."""

    def __init__(self, arrivals: Iterable[Arrival], inbox: Inbox, clock: Clock) -> None:
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._inbox = inbox
        self._clock = clock
        self._next: Arrival | None = next(self._arrivals, None)
        self._open: dict[RequestId, int] = {}
        """Answers still to come, by request."""

    def ready(self) -> bool:
        return self._next is not None and self._next.at_s <= self._clock.now()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Nothing to do: a trace becomes ready by time alone."""

    def next_s(self) -> float | None:
        return None if self._next is None else self._next.at_s

    @property
    def is_done(self) -> bool:
        """Everything has arrived and been answered."""
        return self._next is None and not self._open

    def deliver(self) -> None:
        """Put every request that is due into the inbox."""
        while (due := self._next) is not None and self.ready():
            self._open[due.request.id] = due.request.n
            self._inbox.put(Arrive(due.request))
            self._next = next(self._arrivals, None)
            if self._next is not None and self._next.at_s < due.at_s:
                raise InvariantError(
                    f"request {self._next.request.id} arrives before {due.request.id}, which is ahead of it"
                )

    def __call__(self, event: Event) -> None:
        match event:
            case Finished(request=request):
                self._open[request] -= 1
                if self._open[request] == 0:
                    del self._open[request]
            case Refused(request=request):
                del self._open[request]
            case _:
                pass


class ArrivalClock:
    """A simulated clock under which a trace arrives."""

    def __init__(self, clock: SimClock, source: ArrivalSource, inbox: Inbox) -> None:
        self._clock = clock
        self._source = source
        self._inbox = inbox

    def now(self) -> float:
        return self._clock.now()

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        if self._source.is_done:
            self._inbox.put(Close())
        self._clock.wait(*sources, self._source, until=until)
        self._source.deliver()


def simulate(arrivals: Iterable[Arrival], make_engine: MakeEngine, events: EventSink | None = None) -> Report:
    """Run a trace to its last answer. `events` may listen too."""
    clock, inbox, report = SimClock(), Inbox(), ReportBuilder()
    source = ArrivalSource(arrivals, inbox, clock)

    def tell(event: Event) -> None:
        report(event)
        source(event)
        if events is not None:
            events(event)

    engine = make_engine(ArrivalClock(clock, source, inbox), Ports(inbox, NullOutbox(), tell))
    source.deliver()
    engine.run()
    return report.report()
