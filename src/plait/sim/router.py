"""Routers: which of several engines gets a request.

Owns the choice and what it needs to know: unfinished work of every engine, and where prompts' beginnings went. A router
sees whole requests alone, so it chooses the same whether engines plan steps one by one or in runs.
Invariant: equal calls in equal order give equal choices; ties go to the lowest number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plait.core.request import Request
from plait.sim.form import Routing

PREFIX_TOKENS = 512
"""Beginnings are compared in pieces of so many tokens."""

_MOST_PIECES = 1 << 18
"""Pieces that are remembered; the oldest go first."""

_UNEVEN_FACTOR = 2.0
"""An engine with more than so many times the mean work gets no request for its prefixes alone."""


class Router(Protocol):
    def choose(self, request: Request, tokens_left: Sequence[int]) -> int:
        """The number of an engine. `tokens_left`: of every engine, the tokens of its unfinished requests."""


class LeastTokens:
    def choose(self, request: Request, tokens_left: Sequence[int]) -> int:
        return min(range(len(tokens_left)), key=tokens_left.__getitem__)


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, tokens_left: Sequence[int]) -> int:
        chosen, self._next = self._next % len(tokens_left), self._next + 1
        return chosen


class PrefixAffinity:
    """The engine that was last sent the longest beginning of the prompt; without one, or if that engine is overloaded,
    the one with the least to do.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], int] = {}

    def choose(self, request: Request, tokens_left: Sequence[int]) -> int:
        pieces = _pieces(request)
        known = next((self._places[piece] for piece in reversed(pieces) if piece in self._places), None)
        limit = _UNEVEN_FACTOR * sum(tokens_left) / len(tokens_left) + PREFIX_TOKENS
        if known is None or tokens_left[known] > limit:
            known = LeastTokens().choose(request, tokens_left)
        for piece in pieces:
            self._places.pop(piece, None)
            self._places[piece] = known
        while len(self._places) > _MOST_PIECES:
            del self._places[next(iter(self._places))]
        return known


def router(routing: Routing) -> Router:
    match routing:
        case Routing.LEAST_TOKENS:
            return LeastTokens()
        case Routing.ROUND_ROBIN:
            return RoundRobin()
        case Routing.PREFIX:
            return PrefixAffinity()


def _pieces(request: Request) -> list[tuple[str, int]]:
    """Chained hashes of the prompt's whole pieces, shortest beginning first. Integers hash alike in every process."""
    key, pieces, prompt = 0, [], request.prompt
    for start in range(0, len(prompt) - PREFIX_TOKENS + 1, PREFIX_TOKENS):
        key = hash((key, prompt[start : start + PREFIX_TOKENS]))
        pieces.append((request.tenant, key))
    return pieces
