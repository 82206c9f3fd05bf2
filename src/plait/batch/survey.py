"""Survey: all lines of a job at once, as far as their order needs them.

Owns one reading of the input before it is served: where each line lies, and what the job looks like to those who order
it. Keeps no body and no text, so that hundreds of thousands of lines fit into memory.
Invariant: places count the lines that can be served and are not finished, in the order of the input.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from plait.api.calls import Call
from plait.batch.lines import BatchLine, LineFault, read_lines
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

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, line: BatchLine, call: Call, limit: OutputLimit) -> None:
        """A line of several prompts is ordered by the first of them, and counts all."""
        most = sum(map(limit, call.requests))
        self.numbers.append(line.number)
        self.offsets.append(line.offset)
        num_prompt = sum(len(request.prompt) for request in call.requests)
        place = self.job.add(packed(call.requests[0].prompt), num_prompt, most)
        if all(_says_all(request) for request in call.requests):
            self.job.known[place] = most


def survey(
    source: Source,
    preparer: Preparer,
    finished: frozenset[int],
    limit: OutputLimit,
    go_on: Callable[[], None] = lambda: None,
) -> Survey:
    """Encodes every prompt: not for an event loop. `go_on` is called before each line, and ends the work by raising."""
    found = Survey()
    for line, call in _prepared(source, preparer, finished, go_on):
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


def _says_all(request: Request) -> bool:
    """Whether it says as much as it may, whatever the model thinks."""
    sampling = request.sampling
    cannot_stop = sampling.ignore_eos and not sampling.stop and not sampling.stop_token_ids
    return sampling.max_tokens is not None and (cannot_stop or sampling.min_tokens == sampling.max_tokens)
