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
from plait.batch.service import BatchService, ServiceConfig
from plait.batch.store import Store
from plait.build import LocalEngine, load_model, start_engine
from plait.cli.streams import say
from plait.cli.terminal import download_progress, start_report
from plait.config.engine_options import EngineOptions
from plait.config.serve_options import ServeOptions
from plait.core.errors import PlaitError
from plait.metrics.serving_figures import ServingFigures
from plait.server.app import RouteOf, batch_routes, make_app
from plait.server.door import Door
from plait.server.layers import Layers
from plait.server.metrics_page import Figures, LoopDelay, MetricsPage
from plait.server.openapi import DocsPage, OpenApi, description
from plait.server.running import Opened
from plait.server.serving import Limits, Serving
from plait.server.status_page import StatusFigures, StatusPage

MAX_UNREAD = 8192
"""Parts of one request's answers that may wait for a slow client."""


def opened_server(
    options: ServeOptions,
    engine_options: EngineOptions,
    door: Door,
    layers: Layers,
    store: Store,
    where: str,
    nobody_waits: threading.Event,
) -> Opened:
    """Load the model and build the server around it. `where` clients find it, and how."""
    with download_progress(engine_options.model, quiet=False) as progress:
        model = load_model(engine_options, _unless(nobody_waits, progress), datetime.now)
    door.names = door.names or (model.name,)
    figures = ServingFigures()
    engine = start_engine(engine_options, model, figures, say, MAX_UNREAD)
    try:
        for line in start_report(engine):
            say(line)
        greeting = f"serving   {', '.join(door.names)} {where}"
        return _opened(options, engine_options, engine, figures, door, layers, store, greeting)
    except BaseException:
        engine.close()
        raise


def _opened(
    options: ServeOptions,
    engine_options: EngineOptions,
    engine: LocalEngine,
    figures: ServingFigures,
    door: Door,
    layers: Layers,
    store: Store,
    greeting: str,
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
        created=door.created,
        strict_fields=options.strict_fields,
    )
    delay = LoopDelay()
    batches = BatchService(
        ServiceConfig(door.names, seed=engine_options.seed), store, engine.client, engine.text, unix_now, time.monotonic
    )
    further: list[RouteOf] = [("GET", "/metrics", _metrics_page(engine_options, engine, figures, delay, door.names[0]))]
    status = StatusFigures(
        version("plait"), figures, delay, partial(_memory, engine), partial(_states, store), time.monotonic
    )
    further += [("GET", "/status", StatusPage()), ("GET", "/status.json", status)]
    if options.enable_docs:
        document = description(version("plait"), with_keys=bool(layers.keys))
        further += [("GET", "/openapi.json", OpenApi(document)), ("GET", "/docs", DocsPage(document))]
    further += batch_routes(batches, options.max_file_size)
    app = make_app(serving, layers, version("plait"), further)
    return Opened(app, serving, engine.close, greeting, (delay.watch, batches.run))


def _metrics_page(
    options: EngineOptions, engine: LocalEngine, figures: ServingFigures, delay: LoopDelay, name: str
) -> MetricsPage:
    config = {
        "block_size": str(options.block_size),
        "cache_dtype": options.kv_cache_dtype,
        "enable_prefix_caching": str(options.enable_prefix_caching),
        "num_tokens": str(engine.sizes.capacity_tokens),
    }
    return MetricsPage(Figures(name, engine.client, figures, delay, engine.cache_fraction, config))


def _memory(engine: LocalEngine) -> JsonObject:
    if engine.cache_report is None:
        return {"total_bytes": 0, "used_bytes": 0, "evictable_bytes": 0, "groups": []}
    report = engine.cache_report()
    groups: list[JsonValue] = [
        {
            "name": group.name,
            "kind": group.kind,
            "layers": group.num_layers,
            "tokens_per_block": group.tokens_per_block,
            "used": group.blocks.used + group.blocks.quarantined,
            "evictable": group.blocks.evictable,
            "free": group.blocks.free,
            "idle_bytes": group.idle_bytes,
            "lost_hit_tokens": group.lost_tokens,
        }
        for group in report.groups
    ]
    usage = report.usage
    return {
        "total_bytes": usage.total_bytes,
        "used_bytes": usage.used_bytes,
        "evictable_bytes": usage.evictable_bytes,
        "groups": groups,
    }


def _states(store: Store) -> JsonObject:
    """How many batches of everyone are in each state that is not a last one."""
    counts = Counter(record.state.value for record in store.unfinished_batches())
    return dict(sorted(counts.items()))


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of an option that holds a list."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _unless(nobody_waits: threading.Event, progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def tell(num_bytes: int, total_bytes: int) -> None:
        if nobody_waits.is_set():
            raise PlaitError("the download was given up")
        progress(num_bytes, total_bytes)

    return tell
