"""Serve: `plait serve`, the OpenAI-compatible server on the local engine.

Owns the order of a start: what can be wrong about the command line first, then the port, then the model. Keys are read
here; what the server consists of is put together in `serve_parts`.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

from plait.batch.store import Store
from plait.cli.serve_logs import log_to_stderr
from plait.cli.serve_parts import listed, opened_server
from plait.cli.serve_plan import plan_of
from plait.cli.streams import say, show_json
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources
from plait.config.serve_options import DEFAULT_STATE_DIR, ServeOptions
from plait.core.errors import UsageError
from plait.server.door import Door
from plait.server.identity import Keys
from plait.server.layers import Layers
from plait.server.running import Listening, Opened, StillLoading, run

MAX_KEY_FILE_BYTES = 1 << 20


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
        _root(options.root_path),
        options.shutdown_timeout,
    )
    if options.dry_run:
        show_json(plan_of(engine_options, options, has_keys=bool(keys)))
        return 0
    # Before a model is fetched and loaded: what cannot work should fail at once.
    bound = listening.bound()
    try:
        log_to_stderr(options.log_format)
        with closing(Store.open(options.batch_dir or _default_batch_dir(listening, bound))) as store:
            _run(options, engine_options, listening, keys, bound, store)
    finally:
        bound.close()
        if options.uds is not None:
            options.uds.unlink(missing_ok=True)
    return 0


def _run(
    options: ServeOptions,
    engine_options: EngineOptions,
    listening: Listening,
    keys: Keys,
    bound: socket.socket,
    store: Store,
) -> None:
    layers = Layers(keys, listed(options.allowed_origins), _new_id, time.monotonic)
    door = Door(listed(options.served_model_name), int(time.time()))
    say(f"loading   {engine_options.model}; {listening.url(bound)} answers 503 until then")

    where = f"at {listening.url(bound)}/v1, {'with' if keys else 'without'} API keys"

    def load(nobody_waits: threading.Event) -> Opened:
        return opened_server(options, engine_options, door, layers, store, where, nobody_waits)

    try:
        run(door, door.waiting_room(layers), load, listening, bound, say)
    except StillLoading:
        if options.uds is not None:
            options.uds.unlink(missing_ok=True)
        # A thread deep in a file or a library; at the interpreter's own end it would be met halfway.
        os._exit(0)


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


def _keys(options: ServeOptions) -> tuple[str, ...]:
    keys = listed(options.api_key)
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
