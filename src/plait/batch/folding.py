"""Folding: lines that ask for the same are computed once.

Owns what makes two lines the same, which of them wait for one that is under way, and how its answer becomes theirs.
Asks no engine and writes nothing.
Invariants: lines have one key only if whatever the engine says to one of them answers the other, ids apart; only what
is on the disk is handed on, and no error ever is.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Call
from plait.api.fields import Generation
from plait.batch.ledger import RecordedLine
from plait.batch.lines import BatchLine
from plait.batch.outcomes import LineOutcome, answered
from plait.core.errors import InvariantError
from plait.core.ids import RequestId
from plait.core.request import Request, ServiceClass, Task
from plait.core.sampling import SamplingParams

MOST_WAITING = 1024
"""Lines that wait for others at once: no further one is read meanwhile, so that memory stays bounded."""

_NOT_DRAWN = SamplingParams()


def request_key(call: Call) -> bytes:
    """What the answer follows from, as a digest: prompts in tokens, what a sampler is told, the form of the answer, and
    what is told of it. A seed counts where something is drawn. Which of two fields of one meaning said so does not
    count, nor do ids and the time by which the answer is wanted.
    """
    digest = hashlib.blake2b(digest_size=16)
    told = replace(call, id="", generation=_told(call.generation), requests=())
    digest.update(repr(told).encode(errors="surrogatepass"))
    for request in call.requests:
        form = "" if request.constraint is None else request.constraint.says
        digest.update(repr((len(request.prompt), form, _asked(request))).encode(errors="surrogatepass"))
        digest.update(array("q", request.prompt).tobytes())
    return digest.digest()


def _told(generation: Generation) -> Generation:
    """What shapes the answer besides the requests themselves."""
    return replace(
        generation,
        model=None,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        sampling=replace(generation.sampling, seed=None),
        explicit_max=None,
        service_class=ServiceClass.BATCH,
        grammar=None,
        truncation=None,
    )


def _asked(request: Request) -> Request:
    """Without what is told apart: prompt and form."""
    sampling = request.sampling
    if request.task is Task.EMBED:
        sampling = _NOT_DRAWN
    elif sampling.is_greedy:
        sampling = replace(sampling, seed=None)
    return replace(request, id=RequestId(""), prompt=(), sampling=sampling, constraint=None, deadline_s=None)


def handed_on(found: RecordedLine, line: BatchLine, request: bytes, key_of: Callable[[int], str]) -> LineOutcome:
    """The answer of another line as that of this one, with the usage that it would have alone. `key_of`: what the ids
    of a line are made from.
    """
    body = orjson.loads(found.output)["response"]["body"]
    key = key_of(line.number)
    outcome = answered(key, line.number, line.custom_id, _renamed(body, key_of(found.number), key), found.usage)
    return replace(outcome, request=request, is_folded=True)


def _renamed(body: JsonObject, old: str, new: str) -> JsonObject:
    """The same object with other ids, which are made from a line's key; what the model said is left alone."""
    return {
        name: value.replace(old, new)
        if isinstance(value, str) and (name == "id" or name.endswith("_id"))
        else _renamed_within(value, old, new)
        for name, value in body.items()
    }


def _renamed_within(value: JsonValue, old: str, new: str) -> JsonValue:
    if isinstance(value, dict):
        return _renamed(value, old, new)
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [_renamed_within(one, old, new) for one in value]
    return value


class Folds:
    """Lines under way, by their key, and who waits for each. Changed by the event loop alone; another thread may look
    at it.
    """

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[BatchLine]] = {}
        self._again: deque[BatchLine] = deque()
        """Of whom the line that they waited for has failed, or ended before they came."""
        self.num_waiting = 0

    @property
    def is_full(self) -> bool:
        return self.num_waiting >= MOST_WAITING

    def is_under_way(self, request: bytes) -> bool:
        return request in self._waiting

    def begins(self, request: bytes) -> None:
        if request in self._waiting:
            raise InvariantError("two lines that ask for the same are under way")
        self._waiting[request] = []

    def joins(self, line: BatchLine, request: bytes) -> None:
        """It waits for the one under way; if that has ended meanwhile, it is looked at again."""
        waiting = self._waiting.get(request)
        if waiting is None:
            self._again.append(line)
            return
        waiting.append(line)
        self.num_waiting += 1

    def ended(self, request: bytes) -> Sequence[BatchLine]:
        """The line has its answer, which is on the disk. Those that waited for it."""
        waiting = self._waiting.pop(request)
        self.num_waiting -= len(waiting)
        return waiting

    def failed(self, request: bytes) -> None:
        """It has none. One of those that waited for it will run in its place."""
        self._again.extend(self.ended(request))

    @property
    def has_again(self) -> bool:
        return bool(self._again)

    def again(self) -> BatchLine | None:
        """A line to be looked at again, taken out."""
        return self._again.popleft() if self._again else None
