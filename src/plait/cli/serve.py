"""Serve: `plait serve`, the OpenAI-compatible server on the local engine.

Owns what stands between the command line and the server: keys, names, the start-up report, log lines. The server itself
is `plait.server`.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from plait.batch.service import BatchService, ServiceConfig
from plait.batch.store import Store
from plait.build import LocalEngine, load_model, start_engine
from plait.cli.streams import say, show_json
from plait.cli.terminal import download_progress, start_report
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources
from plait.config.serve_options import DEFAULT_STATE_DIR, ServeOptions
from plait.core.errors import UsageError
from plait.metrics.serving_figures import ServingFigures
from plait.server.app import AppOptions, Work, batch_routes, make_app
from plait.server.identity import Keys
from plait.server.metrics_page import Figures, LoopDelay, MetricsPage
from plait.server.openapi import DocsPage, OpenApi, description
from plait.server.running import Listening, run
from plait.server.serving import Limits, Serving

MAX_KEY_FILE_BYTES = 1 << 20
MAX_UNREAD = 8192
"""Parts of one request's answers that may wait for a slow client."""


def run_serve(sources: OptionSources) -> int:
    engine_options, options = sources.read(EngineOptions), sources.read(ServeOptions)
    keys = Keys(_keys(options))
    if (options.ssl_certfile is None) != (options.ssl_keyfile is None):
        raise UsageError("--ssl-certfile and --ssl-keyfile belong together; give both or neither")
    listening = Listening(
        options.host,
        options.port,
        options.uds,
        options.ssl_certfile,
        options.ssl_keyfile,
        options.root_path.rstrip("/"),
        options.shutdown_timeout,
    )
    if options.dry_run:
        show_json(
            {"engine": _plain(asdict(engine_options)), "server": _plain(asdict(options) | {"api_key": bool(keys)})}
        )
        return 0
    # Before a model is fetched and loaded: what cannot work should fail at once.
    bound = listening.bound()
    try:
        store = Store.open(options.batch_dir or _default_batch_dir(listening, bound))
        _log_to_stderr(options.log_format)
        with download_progress(engine_options.model, quiet=False) as progress:
            model = load_model(engine_options, progress, datetime.now)
        figures = ServingFigures()
        engine = start_engine(engine_options, model, figures, say, MAX_UNREAD)
        try:
            return _serve(options, engine_options, listening, engine, figures, keys, bound, store)
        finally:
            engine.close()
            store.close()
    finally:
        bound.close()
        if options.uds is not None:
            options.uds.unlink(missing_ok=True)


def _serve(
    options: ServeOptions,
    engine_options: EngineOptions,
    listening: Listening,
    engine: LocalEngine,
    figures: ServingFigures,
    keys: Keys,
    bound: socket.socket,
    store: Store,
) -> int:
    def unix_now() -> int:
        return int(time.time())

    names = _listed(options.served_model_name) or (engine.model.name,)
    limits = Limits(engine_options.max_num_seqs + options.max_num_queued_reqs, options.max_body_size)
    serving = Serving(
        client=engine.client,
        text=engine.text,
        names=names,
        limits=limits,
        unix_now=unix_now,
        new_id=lambda: secrets.token_hex(12),
        created=unix_now(),
    )
    delay = LoopDelay()
    config = {
        "block_size": str(engine_options.block_size),
        "cache_dtype": engine_options.kv_cache_dtype,
        "enable_prefix_caching": str(engine_options.enable_prefix_caching),
        "num_tokens": str(engine.sizes.capacity_tokens),
    }
    page = MetricsPage(Figures(names[0], engine.client, figures, delay, engine.cache_fraction, config))
    further: list[tuple[str, str, Work]] = [("GET", "/metrics", page)]
    if options.enable_docs:
        document = description(version("plait"), with_keys=bool(keys))
        further += [("GET", "/openapi.json", OpenApi(document)), ("GET", "/docs", DocsPage(document))]
    batches = BatchService(
        ServiceConfig(names, seed=engine_options.seed), store, engine.client, engine.text, unix_now, time.monotonic
    )
    further += batch_routes(batches, options.max_file_size)
    app = make_app(
        serving,
        AppOptions(keys, _listed(options.allowed_origins), version("plait"), time.monotonic, tuple(further)),
    )
    for line in start_report(engine):
        say(line)
    say(f"serving   {', '.join(names)} at {listening.url(bound)}/v1, {'with' if keys else 'without'} API keys")
    run(app, serving, listening, bound, engine.close, say, beside=(delay.watch, batches.run))
    return 0


def _default_batch_dir(listening: Listening, bound: socket.socket) -> Path:
    """One that the next server at this address finds again."""
    name = f"port-{bound.getsockname()[1]}" if listening.uds is None else f"socket-{listening.uds.name}"
    return DEFAULT_STATE_DIR / "serve" / name


def _keys(options: ServeOptions) -> tuple[str, ...]:
    keys = _listed(options.api_key)
    if options.api_key is not None and not keys:
        # As of an empty file: it was meant to close the server.
        raise UsageError(f"--api-key {options.api_key!r} holds no key; give one, or leave it out for an open server")
    path = options.api_key_file
    if path is None:
        return keys
    return (*keys, *_keys_of_file(path))


def _keys_of_file(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEY_FILE_BYTES + 1).decode()
    except OSError as error:
        raise UsageError(f"--api-key-file {path}: {error.strerror}; give a readable file") from None
    except UnicodeDecodeError:
        raise UsageError(f"--api-key-file {path} is not UTF-8 text; write one key a line") from None
    found = tuple(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    if not found or len(text) > MAX_KEY_FILE_BYTES:
        # An empty file must not open the server to everyone.
        raise UsageError(f"--api-key-file {path} holds no keys, or more than {MAX_KEY_FILE_BYTES:,} bytes of them")
    return found


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _plain(values: dict[str, object]) -> dict[str, object]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


class _JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said)


class _TextLines(logging.Formatter):
    """For a person."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={_plain_word(value)}" for key, value in getattr(record, "fields", {}).items())
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        text = f"{when} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _plain_word(value: object) -> str:
    """Paths and ids are what clients make them: they must neither break the line nor look like another field."""
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _log_to_stderr(form: str) -> None:
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(_JsonLines() if form == "json" else _TextLines())
    for name, level in (("plait", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(lines)
        logger.propagate = False
