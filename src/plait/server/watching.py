"""Watching: what is kept of every request that does work, from its arrival to its end.

Owns the order: what a trace tells holds a refusal by quota, too. Handles no request.
Invariant: whatever becomes of a request, what was taken for it is given back and its trace is ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request

from plait.api.calls import Call, Endpoint
from plait.core.client import Delta
from plait.server.identity import tenant_of
from plait.server.quotas import Quotas, Taken
from plait.server.tracing import Trace, Tracing


@dataclass(slots=True, eq=False)
class Watch:
    """One request. `asked` comes before any delta."""

    taken: Taken | None
    trace: Trace | None

    def asked(self, call: Call) -> None:
        """What it asks for is known."""
        if self.trace is not None:
            self.trace.asked(call)

    def let_in(self, call: Call, max_model_tokens: int) -> None:
        """There is room for it; `RequestError` 429 where it is too much for its key. Last of all that may refuse it:
        who is turned away for another reason has used nothing of his minute.
        """
        if self.taken is not None:
            self.taken.asked(call, max_model_tokens)

    def came(self, place: int, delta: Delta) -> None:
        """Something of the answer to the prompt at this place."""
        if self.taken is not None:
            self.taken.came(len(delta.tokens))
        if self.trace is not None:
            self.trace.came(place, delta)


@dataclass(slots=True)
class Watching:
    quotas: Quotas = field(default_factory=Quotas)
    tracing: Tracing | None = None
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were turned away before the engine saw them, by reason."""

    @contextmanager
    def of(self, endpoint: Endpoint, request: Request) -> Iterator[Watch]:
        """Watch one request, or `RequestError` 429."""
        with ExitStack() as stack:
            trace = None
            if self.tracing is not None:
                trace = stack.enter_context(self.tracing.request(endpoint, request.headers))
            yield Watch(stack.enter_context(self.quotas.request(tenant_of(request))), trace)
