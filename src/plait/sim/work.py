"""Work: what the engines of a cluster have still to do, as a router sees it.

Owns the tokens of unfinished requests by engine: prompt and longest output, counted from arrival to the last answer.
Invariant: it changes only when requests arrive and end, so it is equal however steps are planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.events import Event, Finished, Refused
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.sim.router import Router


class Work:
    """Of the engines `places`, among which the router chooses."""

    def __init__(self, places: Sequence[int], chooser: Router) -> None:
        self.places = places
        """Their numbers among all engines."""
        self._router = chooser
        self._left = [0] * len(places)
        self._open: dict[RequestId, tuple[int, int, int]] = {}
        """Which engine, tokens of each choice, choices that have not ended."""

    def choose(self, request: Request) -> int:
        """The engine of a new request, which counts as its work from now on."""
        place = self._router.choose(request, self._left)
        tokens = len(request.prompt) + (request.sampling.max_tokens or 0)
        self._left[place] += tokens * request.n
        self._open[request.id] = (place, tokens, request.n)
        return self.places[place]

    def tell(self, station: int, event: Event) -> None:
        if not isinstance(event, Finished | Refused):
            return
        known = self._open.get(event.request)
        if known is None or self.places[known[0]] != station:
            return
        place, tokens, choices = known
        ended = choices if isinstance(event, Refused) else 1
        self._left[place] -= tokens * ended
        if choices == ended:
            del self._open[event.request]
        else:
            self._open[event.request] = (place, tokens, choices - ended)
