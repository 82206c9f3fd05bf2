"""Records: what logs say about one request in several lines, put together.

Owns the waiting for the second half of a request, the order by arrival, and the count of what could not be used. Holds
some numbers for each request and none of its text, as logs tell of ends in another order than of beginnings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.request import MAX_TOKENS, TraceRequest

_NUMBER = re.compile(r"\d{1,18}")


def numbers_of(text: str) -> list[int]:
    """The whole numbers of a printed list."""
    return [int(one) for one in _NUMBER.findall(text)]


@dataclass(slots=True)
class Record:
    """A request as far as it is known. `limit`: how long its answer may be at most."""

    at_s: float
    num_prompt: int | None = None
    num_output: int | None = None
    limit: int | None = None
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0


@dataclass(slots=True)
class Records:
    """Requests by id, in order of their first line."""

    notes: list[str]
    """Where to say what was left out and what was assumed."""
    skipped: dict[str, int] = field(default_factory=dict)
    _all: dict[str, Record] = field(default_factory=dict)

    def at(self, request: str, at_s: float) -> Record:
        """The record of a request, a new one from `at_s` on if there is none."""
        return self._all.setdefault(request, Record(at_s))

    def known(self, request: str) -> Record | None:
        return self._all.get(request)

    def skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def requests(self, path: Path, wanted: str) -> Iterator[TraceRequest]:
        """In order of arrival, from second 0 on. `UsageError` if there is none; `wanted` says what was looked for."""
        usable, assumed = [], 0
        for record in self._all.values():
            length = record.num_output if record.num_output is not None else record.limit
            if record.num_prompt is None:
                self.skip("without a number of prompt tokens")
            elif length is None:
                self.skip("without an answer and without a limit of its length")
            elif not record.num_prompt or not length:
                self.skip("with no tokens")
            elif max(record.num_prompt, length) > MAX_TOKENS:
                self.skip(f"with more than {MAX_TOKENS:,} tokens")
            else:
                assumed += record.num_output is None
                usable.append((record, length))
        if assumed:
            self.notes.append(f"{assumed} answers are not in the log; each is taken to be as long as it may be")
        self.notes += [f"{count} requests were left out: {why}" for why, count in self.skipped.items()]
        if not usable:
            reasons = "".join(f"; {count} were left out: {why}" for why, count in self.skipped.items())
            raise UsageError(f"{path} holds no request that can be replayed{reasons}; {wanted}")
        usable.sort(key=lambda pair: pair[0].at_s)
        start_s = usable[0][0].at_s
        for record, length in usable:
            assert record.num_prompt is not None
            yield TraceRequest(
                record.at_s - start_s,
                record.num_prompt,
                length,
                record.blocks,
                record.block_tokens if record.blocks else 0,
            )
