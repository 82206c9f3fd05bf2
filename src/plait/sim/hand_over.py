"""Hand-overs: prompts computed by some engines and continued by others, as in disaggregated serving.

Owns what a request becomes on its way: on a prefill engine it ends with its first token; its keys and values cross the
link, one hand-over of an engine after the other; then it arrives at a decode engine as a request whose prompt, the
first token included, is there but for that token. Both engines are whole ones, each with its own memory.
Invariant: a request is at one engine or on its way between two, and all its tokens together are those it asked for.

What is left out: the prefill engine's blocks are free when it has sent the first token, not when they have been read;
the link is never shared with other traffic; the transfer does not begin before the last layer is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from plait.core.client import Delta
from plait.core.errors import InvariantError, RequestError, UsageError
from plait.core.events import Finished
from plait.core.ids import RequestId
from plait.core.request import FinishReason, Request
from plait.engine.outbox import Outbox
from plait.sim.work import Work


@dataclass(frozen=True, slots=True)
class Link:
    bytes_per_s: float
    latency_s: float
    """Of a hand-over's metadata, whatever its length."""
    token_bytes: int
    """Keys and values of one token in all layers."""


class Sender(Protocol):
    """What a hand-over needs of a driver."""

    def now(self) -> float: ...

    def send(self, request: Request, station: int, at_s: float) -> None: ...


class Spread:
    """Every request is done by one engine, which a router chooses."""

    receivers: frozenset[int] = frozenset()

    def __init__(self, work: Work) -> None:
        self._work = work

    def accept(self, request: Request) -> tuple[int, Request]:
        return self._work.choose(request), request

    def goes_on(self, station: int, event: Finished) -> bool:
        return False


class HandOver:
    """Of requests from the engines of `prefill` to those of `decode`."""

    def __init__(self, prefill: Work, decode: Work, link: Link, max_model_tokens: int) -> None:
        self._prefill = prefill
        self._decode = decode
        self._link = link
        self._max_model_tokens = max_model_tokens
        self._asked: dict[RequestId, Request] = {}
        """What was asked for, of requests at prefill engines."""
        self._free_s: dict[int, float] = {}
        """When a prefill engine's side of the link is free again."""

    @property
    def receivers(self) -> frozenset[int]:
        return frozenset(self._decode.places)

    def accept(self, request: Request) -> tuple[int, Request]:
        if request.n != 1:
            raise UsageError(f"request {request.id!r} asks for {request.n} answers; this form gives one to each prompt")
        self._asked[request.id] = request
        first = replace(request, sampling=replace(request.sampling, max_tokens=1, min_tokens=0))
        return self._prefill.choose(first), first

    def goes_on(self, station: int, event: Finished) -> bool:
        asked = self._asked.get(event.request)
        if asked is None or station not in self._prefill.places or event.reason is not FinishReason.LENGTH:
            return False
        return self._num_left(asked) > 0

    def outbox(self, station: int, sender: Sender) -> Outbox:
        """Where a prefill engine puts its answers."""
        return _FirstTokens(self, station, sender)

    def take(self, station: int, request: RequestId, answer: Delta | RequestError, sender: Sender) -> None:
        """An answer of a prefill engine: the first token, or none."""
        asked = self._asked.pop(request, None)
        if asked is None:
            raise InvariantError(f"request {request!r} is answered by engine {station}, but it is not there")
        num_left = self._num_left(asked)
        if isinstance(answer, RequestError) or answer.finish_reason is not FinishReason.LENGTH or not num_left:
            return
        link, now = self._link, sender.now()
        begin_s = max(now, self._free_s.get(station, 0.0))
        end_s = self._free_s[station] = begin_s + len(asked.prompt) * link.token_bytes / link.bytes_per_s
        sampling = replace(asked.sampling, max_tokens=num_left, min_tokens=max(asked.sampling.min_tokens - 1, 0))
        rest = replace(
            asked,
            prompt=(*asked.prompt, *answer.tokens),
            sampling=sampling,
            num_imported=len(asked.prompt),
            cache_prefix=False,
        )
        sender.send(rest, self._decode.choose(rest), end_s + link.latency_s)

    def _num_left(self, asked: Request) -> int:
        """Tokens behind the first."""
        limit = asked.sampling.max_tokens
        return (self._max_model_tokens - len(asked.prompt) if limit is None else limit) - 1


class _FirstTokens:
    def __init__(self, hand_over: HandOver, station: int, sender: Sender) -> None:
        self._hand_over = hand_over
        self._station = station
        self._sender = sender

    def put(self, request: RequestId, answer: Delta | RequestError) -> None:
        self._hand_over.take(self._station, request, answer, self._sender)

    def flush(self) -> None:
        return
