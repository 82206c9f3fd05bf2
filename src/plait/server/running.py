"""Running: the server from its first listening moment to its last answer.

Owns signals and the drain: one signal lets what is under way finish, up to a limit, and refuses what is new; a second
one ends everything. Knows no route.
Invariant: when `run` returns, nothing listens and the engine is closed.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from plait.core.errors import UsageError
from plait.server.protocol import limited_http, limits_of_process
from plait.server.serving import Serving

KEEP_ALIVE_S = 75
"""Longer than proxies keep a connection that they do not use, so that theirs is the one who closes it."""

CLOSE_S = 5
"""So long what was aborted has to tell its clients."""

SWITCH_INTERVAL_S = 0.001
"""How long the interpreter lets one thread run while another waits: engine and event loop take turns per step."""

_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Listening:
    host: str
    port: int
    uds: Path | None
    certfile: Path | None
    keyfile: Path | None
    root_path: str
    shutdown_timeout_s: float

    def bound(self) -> socket.socket:
        """A socket that clients can connect to from now on; `UsageError` where there can be none."""
        self._check_certificate()
        where = str(self.uds) if self.uds is not None else f"{self.host}:{self.port}"
        try:
            if self.uds is not None:
                return _unix_socket(self.uds)
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            made = socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
            made.setblocking(False)
            return made
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"cannot listen on {where}: {reason}; choose another with --host, --port or --uds"
            ) from None

    def _check_certificate(self) -> None:
        """`UsageError` for a pair that cannot be used. Nobody is there to type a password."""
        if self.certfile is None or self.keyfile is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certfile, self.keyfile, password=lambda: "")
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--ssl-certfile {self.certfile} with --ssl-keyfile {self.keyfile} cannot be used: "
                f"{error.strerror or error if isinstance(error, OSError) else error}; give a certificate and its key "
                "in PEM, the key without a password"
            ) from None

    def url(self, bound: socket.socket) -> str:
        """Where clients find it."""
        if self.uds is not None:
            return f"unix:{self.uds}"
        host, port = bound.getsockname()[:2]
        scheme = "https" if self.certfile is not None else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{self.root_path}"


class _Server(uvicorn.Server):
    """Leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    app: ASGIApp,
    serving: Serving,
    listening: Listening,
    bound: socket.socket,
    close_engine: Callable[[], None],
    say: Callable[[str], None],
    beside: Sequence[Callable[[], Coroutine[None, None, None]]] = (),
) -> None:
    """Serve until a signal comes. `beside`: what runs as long as the event loop does."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app, serving, listening, bound, close_engine, say, beside))


async def _serve(
    app: ASGIApp,
    serving: Serving,
    listening: Listening,
    bound: socket.socket,
    close_engine: Callable[[], None],
    say: Callable[[str], None],
    beside: Sequence[Callable[[], Coroutine[None, None, None]]],
) -> None:
    server = _Server(
        uvicorn.Config(
            app,
            http=limited_http(limits_of_process()),
            root_path=listening.root_path,
            ssl_certfile=listening.certfile,
            ssl_keyfile=listening.keyfile,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSE_S,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
        )
    )
    loop = asyncio.get_running_loop()
    draining: list[asyncio.Task[None]] = []
    companions = [loop.create_task(start()) for start in beside]

    def stop() -> None:
        if draining:
            say("stopping at once")
            server.should_exit = server.force_exit = True
            draining[0].cancel()
            return
        draining.append(loop.create_task(_drain(server, serving, listening.shutdown_timeout_s, close_engine, say)))

    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop)
    try:
        await server.serve([bound])
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
        for task in (*draining, *companions):
            task.cancel()
        await asyncio.gather(*draining, *companions, return_exceptions=True)
        await asyncio.to_thread(close_engine)
        serving.close()


async def _drain(
    server: uvicorn.Server,
    serving: Serving,
    limit_s: float,
    close_engine: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    serving.is_draining = True
    say(f"finishing {serving.num_open} answers, for {limit_s:g} s at most; once more stops at once")
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while serving.num_open:
                await asyncio.sleep(0.02)
    # Whoever is left is told that the server stopped before the answer was finished.
    await asyncio.to_thread(close_engine)
    server.should_exit = True


def _unix_socket(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            _refuse_living(path)
            path.unlink()
        made.bind(str(path))
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _refuse_living(path: Path) -> None:
    """A socket file that nobody listens on was left by a server that was killed."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
        probe.connect(str(path))
        raise OSError(98, "another server listens there")
