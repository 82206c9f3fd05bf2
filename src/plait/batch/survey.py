"""Survey: all lines of a job at once, as far as their order needs them.

Owns one reading of the input before it is served: where each line lies, and what the job looks like to those who order
it. Keeps no body and no text, so that hundreds of thousands of lines fit into memory.
Invariant: places count the lines that can be served, are not finished and ask for what no line before them asks for, in
the order of the input.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

from plait.api.calls import Call
from plait.batch.folding import request_key
from plait.batch.lines import BatchLine, LineFault, read_lines
from plait.batch.planned import says_all
from plait.batch.preparing import Preparer
from plait.batch.source import Source
from plait.core.errors import RequestError
from plait.core.request import Request
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import packed

OutputLimit = Callable[[Request], int]
"""Output tokens that a request may have, all its choices together."""


@dataclass(slots=True)
class Survey:
    """By place."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    job: OfflineJob = field(default_factory=OfflineJob)
    twins: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Number and offset of the other lines that ask for what a place asks for."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def num_twins(self) -> int:
        return sum(map(len, self.twins.values()))

    def lines_of(self, place: int) -> list[int]:
        """Their numbers, the place's own first."""
        return [self.numbers[place], *(number for number, _ in self.twins.get(place, ()))]

    def only(self, places: Sequence[int], finished: Container[int]) -> Survey:
        """The same of some of its places, and of those the lines that are not finished."""
        found = Survey()
        for place in places:
            own = (self.numbers[place], self.offsets[place])
            left = [one for one in (own, *self.twins.get(place, ())) if one[0] not in finished]
            if left:
                (number, offset), *twins = left
                found.numbers.append(number)
                found.offsets.append(offset)
                new = found.job.take_over(self.job, place)
                if twins:
                    found.twins[new] = twins
        return found

    def add(self, line: BatchLine, call: Call, limit: OutputLimit) -> None:
        """A line of several prompts is ordered by the first of them, and counts all."""
        most = sum(map(limit, call.requests))
        self.numbers.append(line.number)
        self.offsets.append(line.offset)
        num_prompt = sum(len(request.prompt) for request in call.requests)
        place = self.job.add(packed(call.requests[0].prompt), num_prompt, most)
        if all(says_all(request) for request in call.requests):
            self.job.known[place] = most


def survey(
    source: Source,
    preparer: Preparer,
    finished: frozenset[int],
    limit: OutputLimit,
    go_on: Callable[[], None] = lambda: None,
    is_recorded: Callable[[bytes], bool] = lambda request: False,
) -> Survey:
    """Encodes every prompt: not for an event loop. `go_on` is called before each line, and ends the work by raising.
    `is_recorded`: whether a request has its answer; the line that asks for it again has no place then.
    """
    found, places = Survey(), dict[bytes, int]()
    for line, call in _prepared(source, preparer, finished, go_on):
        request = request_key(call)
        place = places.get(request)
        if place is not None:
            found.twins.setdefault(place, []).append((line.number, line.offset))
        elif not is_recorded(request):
            places[request] = len(found)
            found.add(line, call, limit)
    return found


def _prepared(
    source: Source, preparer: Preparer, finished: frozenset[int], go_on: Callable[[], None]
) -> Iterator[tuple[BatchLine, Call]]:
    for line in read_lines(source):
        go_on()
        if isinstance(line, LineFault) or line.number in finished:
            continue
        try:
            yield line, preparer.prepare(line)
        except RequestError:
            # Whoever serves it says so.
            continue
