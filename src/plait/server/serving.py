"""Serving: what every route works with.

Owns the served model's names, the engine's client, the text, the limits, and the count of answers under way. Handles no
request.
Invariant: a place that was taken is given back, whatever becomes of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from plait.api.model_text import ModelText
from plait.core.client import EngineClient
from plait.core.errors import RequestError
from plait.server.turnover import Turnover
from plait.server.watching import Watching

T = TypeVar("T")

TEXT_THREADS = 2
"""Encoding and rendering run beside the event loop; more threads would only take cores from the engine."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_open`: choices that may run or wait at once."""

    max_open: int
    max_body_bytes: int


@dataclass(slots=True, eq=False)
class Serving:
    """One engine, as HTTP sees it. `unix_now` gives whole seconds; `new_id` a word that nobody else has."""

    client: EngineClient
    text: ModelText
    names: tuple[str, ...]
    """What clients may ask for; the first is the model's own."""
    limits: Limits
    unix_now: Callable[[], int]
    new_id: Callable[[], str]
    turnover: Turnover
    created: int = 0
    num_open: int = 0
    num_preparing: int = 0
    """Requests that are being checked and encoded, before anybody knows how many choices they have."""
    is_draining: bool = False
    strict_fields: bool = False
    """Whether a field that nobody knows is refused."""
    watching: Watching = field(default_factory=Watching)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="plait-text")
    )

    async def beside_loop(self, work: Callable[..., T], *given: object) -> T:
        """Run what takes a while without holding up other requests."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given))

    @contextmanager
    def place(self, num_choices: int) -> Iterator[None]:
        """Room for so many choices, or `RequestError`. A request larger than all room is let in when nobody is there:
        it waits for nobody but itself.
        """
        self.check_open()
        lacking = self.num_open + num_choices - self.limits.max_open
        if self.num_open and lacking > 0:
            raise self._full(self.num_open, num_choices, lacking)
        self.num_open += num_choices
        try:
            with self.turnover.answer():
                yield
        finally:
            self.num_open -= num_choices

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """One more request to be checked and encoded, or `RequestError`: these are bounded like what is under way."""
        under_way = self.num_open + self.num_preparing
        if under_way >= max(1, self.limits.max_open):
            raise self._full(under_way, 1, under_way + 1 - max(1, self.limits.max_open))
        self.num_preparing += 1
        try:
            yield
        finally:
            self.num_preparing -= 1

    def _full(self, under_way: int, num_choices: int, num_lacking: int) -> RequestError:
        self.watching.refused["queue_full"] += 1
        after_s = self.turnover.wait_s(num_lacking, under_way)
        return RequestError(
            f"{under_way} answers are under way or waiting and {num_choices} more were asked for, but at most "
            f"{self.limits.max_open} are taken on; room is to be expected in {after_s:.2g} s: try again then",
            status=429,
            kind="rate_limit_error",
            code="queue_full",
            retry_after_s=after_s,
        )

    def check_open(self) -> None:
        """`RequestError` 503 while the server takes no more work."""
        if self.is_draining:
            raise unavailable("the server is shutting down; send the request to another one", "shutting_down")
        health = self.client.health()
        if not health.ok:
            raise unavailable(f"the engine does not serve: {health.reason or 'it is closed'}", "engine_stopped")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


Work = Callable[[Serving, Request], Awaitable[Response]]
"""A route."""


def unavailable(message: str, code: str) -> RequestError:
    return RequestError(message, status=503, kind="service_unavailable", code=code)
