"""Serve parts: what `plait serve` consists of, put together around a loaded model.

Owns the composition of engine, batches, metrics and routes. Starts and ends nothing but the engine.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from importlib.metadata import version

from plait.api.bodies import JsonObject, JsonValue
from plait.batch.service import MAX_IN_FLIGHT, BatchService, ServiceConfig
from plait.batch.store import Store
from plait.build import LocalEngine, load_model, start_engine
from plait.cli.offline import AUTO, hardware_here, lives_here, ordering_of
from plait.cli.serve_memory import debug_memory, group_blocks, status_memory
from plait.cli.terminal import download_progress, start_report
from plait.config.class_times import ClassTimes
from plait.config.engine_options import EngineOptions
from plait.config.serve_options import ServeOptions
from plait.core.errors import PlaitError
from plait.core.events import Event
from plait.core.request import ServiceClass, Slo
from plait.metrics.serving_figures import ServingFigures
from plait.sched.blend.choosing import AnyOrdering
from plait.sched.colocation.idle import IdleMeter
from plait.server.app import RouteOf, batch_routes, make_app
from plait.server.door import Door
from plait.server.layers import Layers
from plait.server.metrics_page import Figures, LoopDelay, MetricsPage, Sources
from plait.server.openapi import DocsPage, OpenApi, description
from plait.server.running import Opened
from plait.server.serving import Limits, Serving
from plait.server.status_page import DebugMemory, StatusFigures, StatusPage
from plait.server.turnover import Turnover
from plait.server.watching import Watching

MAX_UNREAD = 8192
"""Parts of one request's answers that may wait for a slow client."""


def opened_server(
    options: ServeOptions,
    engine_options: EngineOptions,
    door: Door,
    layers: Layers,
    watching: Watching,
    store: Store,
    where: str,
    say: Callable[[str], None],
    nobody_waits: threading.Event,
) -> Opened:
    """Load the model and build the server around it. `where` clients find it, and how."""
    with download_progress(engine_options.model, quiet=False) as progress:
        model = load_model(engine_options, _unless(nobody_waits, progress), datetime.now)
    door.names = door.names or (model.name,)
    figures = ServingFigures()
    meter = IdleMeter(lives_here(hardware_here(engine_options, lambda warning: None), engine_options, model))

    def tell(event: Event) -> None:
        figures(event)
        meter(event)

    engine = start_engine(engine_options, model, tell, say, MAX_UNREAD, slos_of(options))
    try:
        for line in start_report(engine):
            say(line)
        greeting = f"serving   {', '.join(door.names)} {where}"
        ordering = ordering_of(AUTO, engine_options, engine, MAX_IN_FLIGHT, say)
        return _opened(
            options, engine_options, engine, figures, meter, door, layers, watching, store, greeting, ordering
        )
    except BaseException:
        engine.close()
        raise


def _opened(
    options: ServeOptions,
    engine_options: EngineOptions,
    engine: LocalEngine,
    figures: ServingFigures,
    meter: IdleMeter,
    door: Door,
    layers: Layers,
    watching: Watching,
    store: Store,
    greeting: str,
    ordering: AnyOrdering | None,
) -> Opened:
    def unix_now() -> int:
        return int(time.time())

    serving = Serving(
        client=engine.client,
        text=engine.text,
        names=door.names,
        limits=Limits(engine_options.max_num_seqs + options.max_num_queued_reqs, options.max_body_size),
        unix_now=unix_now,
        new_id=layers.new_id,
        turnover=Turnover(time.monotonic),
        created=door.created,
        strict_fields=options.strict_fields,
        watching=watching,
    )
    delay = LoopDelay()
    batches = BatchService(
        ServiceConfig(door.names, seed=engine_options.seed, ordering=ordering),
        store,
        engine.client,
        engine.text,
        unix_now,
        time.monotonic,
        lambda: figures.work_done(time.monotonic()),
        lambda: meter.idle.ratio(engine.clock.now()),
        meter.online,
    )
    metrics = _metrics_page(options, engine_options, engine, figures, delay, serving)
    further: list[RouteOf] = [("GET", "/metrics", metrics)]
    status = StatusFigures(
        version("plait"),
        figures,
        delay,
        partial(status_memory, engine.cache_report),
        partial(_batches, store, batches),
        slos_of(options),
        engine.clock.now,
        engine.change_delays,
    )
    memory = DebugMemory(partial(debug_memory, engine.cache_report, engine.geometry, engine_options))
    further += [("GET", "/status", StatusPage()), ("GET", "/status.json", status), ("GET", "/debug/memory", memory)]
    if options.enable_docs:
        document = description(version("plait"), with_keys=bool(layers.keys))
        further += [("GET", "/openapi.json", OpenApi(document)), ("GET", "/docs", DocsPage(document))]
    further += batch_routes(batches, options.max_file_size)
    app = make_app(serving, layers, version("plait"), further)
    return Opened(app, serving, engine.close, greeting, (delay.watch, batches.run))


def _metrics_page(
    options: ServeOptions,
    engine_options: EngineOptions,
    engine: LocalEngine,
    figures: ServingFigures,
    delay: LoopDelay,
    serving: Serving,
) -> MetricsPage:
    config = {
        "block_size": str(engine_options.block_size),
        "cache_dtype": engine_options.kv_cache_dtype,
        "enable_prefix_caching": str(engine_options.enable_prefix_caching),
        "num_tokens": str(engine.sizes.capacity_tokens),
    }
    sources = Sources(
        engine.client,
        figures,
        delay,
        engine.cache_fraction,
        partial(group_blocks, engine.cache_report),
        config,
        slos_of(options),
        engine.clock.now,
        serving.watching.refused,
        engine.change_delays,
    )
    return MetricsPage(Figures(serving.names[0], sources))


def slos_of(options: ServeOptions) -> dict[ServiceClass, Slo]:
    """The targets that the options set, by class."""
    no_times = ClassTimes()
    ttft, itl, tpot = (one or no_times for one in (options.ttft_slo, options.itl_slo, options.tpot_slo))
    return {one: Slo(ttft_s=ttft.of(one), itl_s=itl.of(one), tpot_s=tpot.of(one)) for one in ServiceClass}


def _batches(store: Store, batches: BatchService) -> JsonObject:
    """How many batches of everyone are in each state that is not a last one, and how far those are that run. No ids:
    whoever looks may have another key.
    """
    counts = Counter(record.state.value for record in store.unfinished_batches())
    running: list[JsonValue] = [
        {
            "state": record.state.value,
            "total": record.num_total,
            "completed": record.num_completed,
            "failed": record.num_failed,
            "output_tokens": record.output_tokens,
            "left_s": None if record.left_s is None else round(record.left_s, 1),
            "outlook": record.told_outlook,
        }
        for record in batches.under_way()
    ]
    return {"states": dict(sorted(counts.items())), "running": running}


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of an option that holds a list."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _unless(nobody_waits: threading.Event, progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def tell(num_bytes: int, total_bytes: int) -> None:
        if nobody_waits.is_set():
            raise PlaitError("the download was given up")
        progress(num_bytes, total_bytes)

    return tell
