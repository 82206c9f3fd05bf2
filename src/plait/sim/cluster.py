"""Clusters: several engines behind one door, all under one simulated clock.

Owns what a cluster is made of and how it is put together: engines, their memories, the router and what is told of
each. Steps, plans and memory are those of `plait.assembly`.
Invariant: equal specs and loads give equal reports, plan hashes included.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from plait.assembly import EngineParts
from plait.core.errors import UsageError
from plait.core.events import Collected, Emitted, Event, Finished, Refused, Submitted
from plait.kv.cache import KVCache
from plait.model.cache_layout import token_bytes
from plait.sim.arrivals import Arrival
from plait.sim.driver import Driver, StationSink
from plait.sim.figures import EngineFigures, EngineReport
from plait.sim.form import Form, Role, Routing
from plait.sim.hand_over import HandOver, Link, Spread
from plait.sim.load import Load, TraceLoad
from plait.sim.replica import ReplicaSpec, replica_parts
from plait.sim.report import OutcomeSink, Report, ReportBuilder, nobody
from plait.sim.router import router
from plait.sim.work import Work


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Every engine is a `replica`; with P + D engines there are P + D devices and pools."""

    replica: ReplicaSpec
    form: Form = field(default_factory=Form)
    routing: Routing = Routing.LEAST_TOKENS
    macro_steps: bool = True
    """Plan equal steps at once: the same plans, times and answers; memory is sampled at other moments
    (docs/adr/0013).
    """
    link_bytes_per_s: float | None = None
    """What one hand-over of keys and values gets; None: the device's link to others."""
    link_latency_s: float = 0.21e-3
    """Bullet (ASPLOS'26): mean time in which a request's metadata goes from prefill to decode."""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """`whole` is what those see who send requests; `engines` what each engine did, in the order of their numbers."""

    whole: Report
    engines: tuple[EngineReport, ...]
    plan_hash: str
    """Of all engines' plans: `plait.core.step.PlanDigest` of each, in order."""

    @property
    def decode_batch_mean(self) -> float:
        """Over the steps of all engines that decode anything."""
        steps = [engine.num_decode_steps for engine in self.engines]
        weighted = sum(e.decode_batch_mean * n for e, n in zip(self.engines, steps, strict=True))
        return weighted / sum(steps) if sum(steps) else 0.0

    @property
    def prefill_share(self) -> float:
        """Part of all engines' time in steps that goes to prompts."""
        busy_s = sum(engine.busy_s for engine in self.engines)
        return sum(engine.prefill_share * engine.busy_s for engine in self.engines) / busy_s if busy_s else 0.0


EngineSink = Callable[[int, Event], None]
"""Told every event with the number of its engine; sequence and step ids count within one engine."""


def simulate_cluster(
    arrivals: Iterable[Arrival] | Load,
    spec: ClusterSpec,
    events: EngineSink | None = None,
    outcomes: OutcomeSink = nobody,
) -> ClusterReport:
    """Run a load to its last answer. `outcomes` is told of every sequence as it ends."""
    load = TraceLoad(arrivals) if isinstance(arrivals, Iterable) else arrivals
    with _rare_collections():
        return _Cluster(load, spec, events, outcomes).run()


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Steps make many small values without cycles: looking for garbage among them would take a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Cluster:
    def __init__(self, load: Load, spec: ClusterSpec, events: EngineSink | None, outcomes: OutcomeSink) -> None:
        form = spec.form
        self._report = ReportBuilder(outcomes)
        self._work = [Work(range(form.num_first), router(spec.routing))]
        self._dispatch: Spread | HandOver = Spread(self._work[0])
        if form.is_disagg:
            decode = Work(range(form.num_first, form.num_engines), router(Routing.LEAST_TOKENS))
            self._dispatch = HandOver(self._work[0], decode, _link(spec), spec.replica.max_model_tokens)
            self._work.append(decode)
        self._driver = Driver(load, form.num_engines, self._dispatch)
        self._parts: list[EngineParts] = []
        self._figures = [EngineFigures(role, self._memory_of(place)) for place, role in enumerate(form.roles)]
        sinks: list[StationSink] = [self._tell] if events is None else [self._tell, events]
        for place, station in enumerate(self._driver.stations):
            if isinstance(self._dispatch, HandOver) and form.roles[place] is Role.PREFILL:
                station.outbox = self._dispatch.outbox(place, self._driver)
            horizon = partial(self._driver.horizon, place) if spec.macro_steps else None
            # Whoever else listens wants every token as an event of its own.
            tokens = partial(self._report.emitted_together, place) if events is None else None
            ports = self._driver.ports(place, sinks, tokens)
            # Each is a machine of its own, which is slow in other moments than the others.
            one = replace(spec.replica, seed=spec.replica.seed + (place << 32))
            self._parts.append(replica_parts(one, station.clock, ports, horizon))

    def run(self) -> ClusterReport:
        self._driver.run([parts.engine for parts in self._parts])
        engines = tuple(figures.report() for figures in self._figures)
        digest = hashlib.blake2b("".join(engine.plan_hash for engine in engines).encode(), digest_size=16)
        plan_hash = engines[0].plan_hash if len(engines) == 1 else digest.hexdigest()
        return ClusterReport(self._report.report(), engines, plan_hash)

    def _tell(self, station: int, event: Event) -> None:
        if isinstance(event, Emitted):  # most events are: nobody else wants them
            self._report.emitted(station, event)
            return
        if isinstance(event, Finished) and self._dispatch.goes_on(station, event):
            self._report.hand_over(station, event)
        else:
            self._report.tell(station, event)
        if isinstance(event, Finished | Refused):
            for work in self._work:
                work.tell(station, event)
        elif isinstance(event, Collected | Submitted):
            self._figures[station](event)

    def _memory_of(self, place: int) -> Callable[[], KVCache]:
        return lambda: self._parts[place].kv


def _link(spec: ClusterSpec) -> Link:
    replica, hardware = spec.replica, spec.replica.hardware
    bytes_per_s = hardware.comm_bytes_per_s if spec.link_bytes_per_s is None else spec.link_bytes_per_s
    if not bytes_per_s > 0:
        raise UsageError(
            f"form {spec.form} sends keys and values from device to device, but {hardware.name} has no link; give the "
            "link's bytes per second"
        )
    return Link(bytes_per_s, spec.link_latency_s, token_bytes(replica.program, replica.cache_type))
