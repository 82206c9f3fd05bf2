"""Watching: what is kept of every request that does work, from its arrival to its end.

Owns the order: a key's quota first, then what is traced. Handles no request.
Invariant: whatever becomes of a request, what was taken for it is given back and its trace is ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request

from plait.api.calls import Call, Endpoint
from plait.core.client import Delta
from plait.server.identity import tenant_of
from plait.server.quotas import Quotas, Taken


@dataclass(slots=True, eq=False)
class Watch:
    """One request. `asked` comes before any delta."""

    taken: Taken | None

    def asked(self, call: Call, max_model_tokens: int) -> None:
        """What it asks for is known; `RequestError` 429 where that is too much for its key."""
        if self.taken is not None:
            self.taken.asked(call, max_model_tokens)

    def came(self, delta: Delta) -> None:
        if self.taken is not None and delta.tokens:
            self.taken.came(len(delta.tokens))


@dataclass(slots=True)
class Watching:
    quotas: Quotas = field(default_factory=Quotas)

    @contextmanager
    def of(self, endpoint: Endpoint, request: Request) -> Iterator[Watch]:
        """Watch one request, or `RequestError` 429."""
        with self.quotas.request(tenant_of(request)) as taken:
            yield Watch(taken)
