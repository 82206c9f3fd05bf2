"""Serve: `plait serve`, the OpenAI-compatible server on the local engine.

Owns the order of a start: what can be wrong about the command line first, then the port, then the model. What the
server consists of is put together in `serve_parts`.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from plait.batch.store import Store
from plait.build import check_scheduler
from plait.cli.api_keys import ApiKey, api_keys
from plait.cli.serve_logs import logging_to_stderr
from plait.cli.serve_parts import listed, opened_server
from plait.cli.serve_plan import plan_of
from plait.cli.streams import show_json
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources
from plait.config.serve_options import DEFAULT_STATE_DIR, ServeOptions
from plait.core.errors import UsageError
from plait.server.door import Door
from plait.server.identity import Keys, tenant_of_key
from plait.server.layers import Layers
from plait.server.quotas import Account, Quotas
from plait.server.running import Listening, Opened, StillLoading, run
from plait.server.tracing import Tracing, open_tracing
from plait.server.watching import Watching


def run_serve(sources: OptionSources) -> int:
    engine_options, options = sources.read(EngineOptions), sources.read(ServeOptions)
    check_scheduler(engine_options)
    given = api_keys(options)
    keys = Keys([one.key for one in given])
    if (options.ssl_certfile is None) != (options.ssl_keyfile is None):
        raise UsageError("--ssl-certfile and --ssl-keyfile belong together; give both or neither")
    listening = Listening(
        options.host,
        options.port,
        options.uds,
        options.ssl_certfile,
        options.ssl_keyfile,
        _root(options.root_path),
        options.shutdown_timeout,
    )
    if options.dry_run:
        if (tracing := _tracing(options)) is not None:
            tracing.close()
        show_json(plan_of(engine_options, options, has_keys=bool(keys)))
        return 0
    # Before a model is fetched and loaded: what cannot work should fail at once.
    bound = listening.bound()
    is_loading = False
    try:
        folder = options.batch_dir or _default_batch_dir(listening, bound)
        with logging_to_stderr(options.log_format) as lines, closing(Store.open(folder)) as store:
            _run(options, engine_options, listening, given, bound, store, lines.say)
    except StillLoading:
        is_loading = True
    finally:
        bound.close()
        if options.uds is not None:
            options.uds.unlink(missing_ok=True)
    if is_loading or lines.is_stuck:
        # A thread deep in a file or a library; at the interpreter's own end it would be met halfway, or waited for.
        os._exit(0)
    return 0


def _run(
    options: ServeOptions,
    engine_options: EngineOptions,
    listening: Listening,
    given: tuple[ApiKey, ...],
    bound: socket.socket,
    store: Store,
    say: Callable[[str], None],
) -> None:
    keys = Keys([one.key for one in given])
    layers = Layers(keys, listed(options.allowed_origins), _new_id, time.monotonic)
    door = Door(listed(options.served_model_name), int(time.time()))
    say(f"loading   {engine_options.model}; {listening.url(bound)} answers 503 until then")

    where = f"at {listening.url(bound)}/v1, {'with' if keys else 'without'} API keys"

    watching = _watching(options, given)

    def load(nobody_waits: threading.Event) -> Opened:
        return opened_server(options, engine_options, door, layers, watching, store, where, say, nobody_waits)

    try:
        run(door, door.waiting_room(layers), load, listening, bound, say)
    finally:
        if watching.tracing is not None:
            watching.tracing.close()


def _watching(options: ServeOptions, given: tuple[ApiKey, ...]) -> Watching:
    """Quotas by tenant, and traces where there is a collector for them."""
    watching = Watching(tracing=_tracing(options))

    def count(reason: str) -> None:
        watching.refused[reason] += 1

    limited = {tenant_of_key(one.key): one.quota for one in given if one.quota is not None}
    accounts = {tenant: Account(quota, time.monotonic, count) for tenant, quota in limited.items()}
    watching.quotas = Quotas(accounts)
    return watching


def _tracing(options: ServeOptions) -> Tracing | None:
    """`UsageError` for a collector that cannot be one, and where OpenTelemetry is not installed."""
    endpoint = options.otlp_traces_endpoint
    return None if endpoint is None else open_tracing(endpoint, version("plait"), time.monotonic)


def _new_id() -> str:
    return secrets.token_hex(12)


def _default_batch_dir(listening: Listening, bound: socket.socket) -> Path:
    """One that the next server at this address finds again."""
    name = f"port-{bound.getsockname()[1]}" if listening.uds is None else f"socket-{listening.uds.name}"
    return DEFAULT_STATE_DIR / "serve" / name


def _root(path: str) -> str:
    """The path with a slash in front and none behind; empty for the root itself."""
    inner = path.strip("/")
    return f"/{inner}" if inner else ""
