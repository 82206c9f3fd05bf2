"""Ordered: the lines of a job in the order of a feed, one after the other, for whoever serves them.

Owns the way from a place in a survey back to its line. Chooses no order.
Invariant: every line of the job that is not finished comes once; those that ask for what another one asks for come
behind it, and those that cannot be served, or whose answer is there already, come last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Protocol

from plait.batch.lines import BatchLine, LineFault, parse_line
from plait.batch.source import Source
from plait.batch.survey import Survey
from plait.sched.blend.feeds import Feed


class Wait(Enum):
    """Something that runs must end before the next line comes."""

    FOR_AN_END = 0


AnyLine = BatchLine | LineFault


class Lines(Protocol):
    def next(self) -> AnyLine | Wait | None:
        """The next line; None at the end. Called in one thread at a time, not always the same."""

    def ended(self, number: int, output_tokens: int) -> None:
        """A line that came has its answer. From another thread."""


class LinesAsGiven:
    """In the order of the input."""

    def __init__(self, lines: Iterator[AnyLine]) -> None:
        self._lines = lines

    def next(self) -> AnyLine | Wait | None:
        return next(self._lines, None)

    def ended(self, number: int, output_tokens: int) -> None:
        """Nothing follows from it."""


class LinesInOrder:
    """In the order of a feed. `idle_ratio`: what others leave idle, as `plait.sched.colocation.idle` says it."""

    def __init__(
        self,
        source: Source,
        found: Survey,
        feed: Feed,
        rest: Callable[[frozenset[int]], Iterator[AnyLine]],
        idle_ratio: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`rest`: the lines of the job that are not finished, without those of these numbers."""
        self._source = source
        self._found = found
        self._feed = feed
        self._idle_ratio = idle_ratio
        self._places: dict[int, int] = {}
        """Number of a line that runs -> its place."""
        self._ended: deque[tuple[int, int]] = deque()
        self._twins: deque[tuple[int, int]] = deque()
        """Number and offset of those that come next."""
        self._rest = rest
        self._last: Iterator[AnyLine] | None = None

    def next(self) -> AnyLine | Wait | None:
        while self._ended:
            number, output_tokens = self._ended.popleft()
            self._feed.ended(self._places.pop(number), output_tokens)
        if self._twins:
            return parse_line(self._source.line_at(*self._twins.popleft()))
        self._feed.beside(self._idle_ratio())
        place = self._feed.next()
        if place is not None:
            number = self._found.numbers[place]
            self._places[number] = place
            self._twins.extend(self._found.twins.get(place, ()))
            return parse_line(self._source.line_at(number, self._found.offsets[place]))
        if self._feed.num_left:
            return Wait.FOR_AN_END
        if self._last is None:
            surveyed = (number for place in range(len(self._found)) for number in self._found.lines_of(place))
            self._last = self._rest(frozenset(surveyed))
        return next(self._last, None)

    def ended(self, number: int, output_tokens: int) -> None:
        if number in self._places:
            self._ended.append((number, output_tokens))
