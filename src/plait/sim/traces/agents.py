"""Agents: files of whole sessions, one a line, whose requests wait for answers and then for their user.

Owns the form `session, block_size, requests[]` with `in`, `out`, `think_s` and `blocks` as inclusive ranges local to
the session. Pauses are cut to `THINK_LIMIT_S`: somebody came back the next morning, and the cache will not have waited.
Invariant: a session's requests stand together, the first without a pause; answers of no tokens count as one, because an
engine says at least one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.fields import json_object, seconds, tokens, word
from plait.sim.traces.lines import Place, numbered
from plait.sim.traces.request import TraceRequest

THINK_LIMIT_S = 120.0
SESSION_BITS = 32
"""Names of blocks are local: the session's number stands above them."""
MAX_BLOCKS = 1 << 24


def is_session(values: Mapping[str, object]) -> bool:
    return isinstance(values.get("requests"), list) and "block_size" in values


def read_sessions(path: Path, think_limit_s: float = THINK_LIMIT_S) -> Iterator[TraceRequest]:
    """The requests of every session, in order. Holds one session."""
    for number, (place, text) in enumerate(numbered(path)):
        values = json_object(text, place)
        requests = values.get("requests")
        if not isinstance(requests, list) or not requests:
            raise place.error("requests", requests, "it must be a list of the session's requests")
        size = tokens(values, needed_size(values, place), place)
        name = word(values, "session") or f"session-{number}"
        for turn, one in enumerate(requests):
            if not isinstance(one, dict):
                raise place.error(f"requests[{turn}]", one, "it must be an object with in and out")
            yield _request(one, turn, place, _Session(f"{number}-{name}", number, size, think_limit_s))


def needed_size(values: Mapping[str, object], place: Place) -> str:
    if "block_size" not in values:
        raise UsageError(f"{place}: block_size is missing; a session says how many tokens its blocks have")
    return "block_size"


class _Session:
    __slots__ = ("block_tokens", "name", "number", "think_limit_s")

    def __init__(self, name: str, number: int, block_tokens: int, think_limit_s: float) -> None:
        self.name, self.number, self.block_tokens, self.think_limit_s = name, number, block_tokens, think_limit_s


def _request(values: Mapping[str, object], turn: int, place: Place, session: _Session) -> TraceRequest:
    fields = {f"requests[{turn}].{name}": value for name, value in values.items()}
    for name in ("in", "out"):
        if name not in values:
            raise UsageError(f"{place}: requests[{turn}].{name} is missing; a request has in and out, in tokens")
    think = f"requests[{turn}].think_s"
    pause_s = seconds(fields, think, place, "it must be seconds, 0 or more") if think in fields else 0.0
    return TraceRequest(
        None,
        tokens(fields, f"requests[{turn}].in", place),
        max(1, tokens(fields, f"requests[{turn}].out", place, least=0)),
        _blocks(values.get("blocks", []), turn, place, session.number),
        session.block_tokens,
        session=session.name,
        think_s=None if turn == 0 else min(pause_s, session.think_limit_s),
    )


def _blocks(ranges: object, turn: int, place: Place, session: int) -> tuple[int, ...]:
    found: list[int] = []
    expected = "each must be a range [first, last] of block numbers, 0 or more"
    if not isinstance(ranges, list):
        raise place.error(f"requests[{turn}].blocks", ranges, expected)
    for pair in ranges:
        # `type(one) is int`: true is an int too.
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(one) is int for one in pair):
            raise place.error(f"requests[{turn}].blocks", pair, expected)
        first, last = pair
        if not 0 <= first <= last < 1 << SESSION_BITS or len(found) + last - first >= MAX_BLOCKS:
            raise place.error(f"requests[{turn}].blocks", pair, expected)
        found += range(session << SESSION_BITS | first, (session << SESSION_BITS | last) + 1)
    return tuple(found)
