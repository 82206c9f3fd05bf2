"""Running: the server from its first listening moment to its last answer.

Owns loading beside answering, signals and the drain: one signal lets what is under way finish, up to a limit, and
refuses what is new; a second one ends everything. Knows no route.
Invariant: when `run` returns, nothing listens and the engine is closed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from plait.core.errors import UsageError
from plait.core.wakeups import wake_promptly
from plait.server.door import Door
from plait.server.layers import under
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
            number = getattr(error, "errno", None) or 0  # of names that nobody knows it is below 0
            reason = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
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


@dataclass(frozen=True, slots=True)
class Opened:
    """A server that can answer. `close` ends its engine; `beside`: what runs as long as the event loop does;
    `greeting`: what is said when the door is open.
    """

    app: ASGIApp
    serving: Serving
    close: Callable[[], None]
    greeting: str
    beside: tuple[Callable[[], Coroutine[None, None, None]], ...] = ()


Load = Callable[[threading.Event], Opened]
"""Loads a model. When the event is set nobody waits for it any more, and it may raise what it likes."""


class StillLoading(Exception):
    """A signal came while the model was being loaded, in a thread that nothing but the end of the process ends."""


def run(
    door: Door,
    waiting_room: ASGIApp,
    load: Load,
    listening: Listening,
    bound: socket.socket,
    say: Callable[[str], None],
) -> None:
    """Answer until a signal comes, through the door that opens when `load` has returned. What `load` raises is raised;
    `StillLoading` where it goes on regardless.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    wake_promptly()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Running(door, listening, say).serve(waiting_room, load, bound))


class _Running:
    """One server, from its start to its end."""

    def __init__(self, door: Door, listening: Listening, say: Callable[[str], None]) -> None:
        self._door = door
        self._listening = listening
        self._say = say
        self._opened: Opened | None = None
        self._companions: list[asyncio.Task[None]] = []
        self._drain: asyncio.Task[None] | None = None
        self._nobody_waits = threading.Event()

    async def serve(self, waiting_room: ASGIApp, load: Load, bound: socket.socket) -> None:
        server = _server(waiting_room, self._listening)
        loop = asyncio.get_running_loop()
        loaded = _in_a_thread(load, self._nobody_waits)
        loaded.add_done_callback(lambda _: self._open(loaded, server))
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, self._stop, server)
        try:
            await server.serve([bound])
        finally:
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(one)
            await self._end(loaded)
        if self._opened is None and not self._nobody_waits.is_set():
            loaded.result()

    def _open(self, loaded: asyncio.Future[Opened], server: uvicorn.Server) -> None:
        if loaded.cancelled() or loaded.exception() is not None or self._nobody_waits.is_set():
            server.should_exit = True
            return
        self._opened = loaded.result()
        # A model, its vocabulary above all, is hundreds of thousands of objects that stay until the end. To look if
        # they are garbage takes a tenth of a second, every few seconds, in which no other thread runs.
        gc.freeze()
        self._companions += [asyncio.ensure_future(start()) for start in self._opened.beside]
        self._door.open(self._opened.app)
        self._say(self._opened.greeting)

    def _stop(self, server: uvicorn.Server) -> None:
        if self._opened is None:
            self._say("stopping; the model was still being loaded")
            self._nobody_waits.set()
            server.should_exit = True
        elif self._drain is not None:
            self._say("stopping at once")
            server.should_exit = server.force_exit = True
            self._drain.cancel()
        else:
            drain = _drain(server, self._opened, self._listening.shutdown_timeout_s, self._say)
            self._drain = asyncio.get_running_loop().create_task(drain)

    async def _end(self, loaded: asyncio.Future[Opened]) -> None:
        tasks = [*self._companions, *([] if self._drain is None else [self._drain])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._opened is None:
            await asyncio.wait([loaded], timeout=CLOSE_S)
            if not loaded.done():
                raise StillLoading
            if loaded.exception() is not None:
                return
            self._opened = loaded.result()
        await asyncio.to_thread(self._opened.close)
        self._opened.serving.close()


def _in_a_thread(load: Load, nobody_waits: threading.Event) -> asyncio.Future[Opened]:
    """The result of `load`, in a thread of its own: one of a pool is waited for at the end, however long it takes."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Opened] = loop.create_future()

    def tell(made: Opened | None, trouble: BaseException | None) -> None:
        if made is not None:
            done.set_result(made)
        elif trouble is not None:
            done.set_exception(trouble)

    def work() -> None:
        made, trouble = None, None
        try:
            made = load(nobody_waits)
            gc.collect()
        except BaseException as error:  # carried to whoever started the server
            trouble = error
        # The loop may have ended meanwhile, and with it whoever would have listened.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, made, trouble)

    threading.Thread(target=work, name="plait-loading", daemon=True).start()
    return done


def _server(app: ASGIApp, listening: Listening) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            under(listening.root_path, app),
            http=limited_http(limits_of_process()),
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


async def _drain(server: uvicorn.Server, opened: Opened, limit_s: float, say: Callable[[str], None]) -> None:
    serving = opened.serving
    serving.is_draining = True
    if serving.num_open:
        say(f"finishing {serving.num_open} answers, for {limit_s:g} s at most; once more stops at once")
    else:
        say("stopping: no answer is under way")
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while serving.num_open:
                await asyncio.sleep(0.02)
    # Whoever is left is told that the server stopped before the answer was finished.
    await asyncio.to_thread(opened.close)
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
