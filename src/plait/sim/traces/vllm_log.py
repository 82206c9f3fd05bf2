"""vLLM log: the lines in which a vLLM server says what it was asked (`--enable-log-requests`) and what it answered.

Owns the texts "Received request ID: ..." (with the prompt or its token ids; newer versions say them in "Request ID
details: ..." at DEBUG), "Generated response ID ...", and the clock of the line: `INFO 10-01 18:43:27`, without a year.
The same texts inside JSON log lines (`asctime` or `timestamp`, `message`) are read alike.
Invariant: all other lines are passed over; a line that begins like one of these and cannot be understood is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from plait.sim.traces.fields import date_s
from plait.sim.traces.fingerprints import Fingerprints, pieces_of
from plait.sim.traces.lines import Place, numbered
from plait.sim.traces.records import Records, numbers_of
from plait.sim.traces.request import TraceRequest

TICK_S = 1.0
"""Of the log's clock; see `spread`."""
MARKS = ("Received request ", "Generated response ")
_CLOCK = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_EVENT = re.compile(
    r"(Received request|Request|Generated response) (\S+?)(?: details)?(?: \(streaming (complete|delta)\))?: "
)
_IDS = re.compile(r"prompt_token_ids: \[([\d, ]*)\]")
_OUTPUT_IDS = re.compile(r"output_token_ids: \[([\d, ]*)\]")
_LIMIT = re.compile(r"max_tokens=(\d{1,12})")
_PROMPT = re.compile(r"prompt: ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_WANTED = "start vLLM with --enable-log-requests, and with VLLM_LOGGING_LEVEL=DEBUG where INFO does not tell the prompt"
_YEAR_S = 366 * 86_400.0


def is_vllm_log(head: str) -> bool:
    return any(mark in head for mark in MARKS)


def read_vllm_log(path: Path, notes: list[str]) -> Iterator[TraceRequest]:
    """Requests in order of arrival; those of one second stand at its beginning."""
    records, prints, clock = Records(notes), Fingerprints(), _Clock()
    for place, text in numbered(path):
        line = _message(text)
        found = _EVENT.search(line)
        if found is None:
            continue
        kind, name, part = found.groups()
        rest = line[found.end() :]
        if kind == "Generated response":
            record = records.known(name)
            if record is not None and part != "delta":
                record.num_output = _count(_OUTPUT_IDS, rest)
            continue
        record = records.at(name, clock.read(line[: found.start()], place))
        limit = _LIMIT.search(rest)
        record.limit = int(limit.group(1)) if limit else record.limit
        ids = _IDS.search(rest)
        if ids is not None and numbers_of(ids.group(1)):
            tokens: list[object] = list(numbers_of(ids.group(1)))
        elif prompt := _PROMPT.search(rest):
            tokens = list(pieces_of(prompt.group(1)[1:-1]))
        else:
            continue
        record.num_prompt, record.blocks, record.block_tokens = len(tokens), prints.blocks(tokens), prints.block_tokens
    yield from records.requests(path, _WANTED)


def _count(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return len(numbers_of(found.group(1))) or None if found is not None else None


def _message(text: str) -> str:
    """A JSON log line as the text that it stands for, its time in front."""
    if not text.startswith("{"):
        return text
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(values, dict):
        return text
    at = next((values[name] for name in ("timestamp", "asctime", "time") if name in values), "")
    return f"{at} {values.get('message', '')}"


class _Clock:
    """A clock without a year: when it goes far back, a new year has begun."""

    def __init__(self) -> None:
        self._year_s = 0.0
        self._before = 0.0

    def read(self, text: str, place: Place) -> float:
        date = _DATE.search(text)
        if date is not None:
            return date_s(date.group(0).replace(",", "."), "the time", place)
        found = _CLOCK.search(text)
        if found is None:
            raise place.error("the time", text.strip(), "a line of vLLM's log begins as in INFO 01-31 12:00:00")
        month, day, hour, minute, second = (int(one) for one in found.groups())
        try:
            # 2000 has a 29th of February.
            at_s = datetime(2000, month, day, hour, minute, second, tzinfo=UTC).timestamp() + self._year_s
        except ValueError:
            raise place.error("the time", found.group(0), "there is no such day or time") from None
        if at_s < self._before - _YEAR_S / 2:
            self._year_s += _YEAR_S
            at_s += _YEAR_S
        self._before = at_s
        return at_s
