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
    """The engine that was last sent the longest beginning of the prompt, if this saves more tokens than the engine has
    to do more than the one with the least to do; else that one.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], int] = {}

    def choose(self, request: Request, tokens_left: Sequence[int]) -> int:
        pieces = _pieces(request)
        chosen = LeastTokens().choose(request, tokens_left)
        num_known = next((count for count in range(len(pieces), 0, -1) if pieces[count - 1] in self._places), 0)
        if num_known:
            place = self._places[pieces[num_known - 1]]
            if tokens_left[place] - num_known * PREFIX_TOKENS <= tokens_left[chosen]:
                chosen = place
        for piece in pieces:
            self._places.pop(piece, None)
            self._places[piece] = chosen
        while len(self._places) > _MOST_PIECES:
            del self._places[next(iter(self._places))]
        return chosen


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
