"""Arrivals: who asks for how much, and when. Traces from files, synthetic load, and the requests they stand for.

Owns the CSV form (`arrival_s,input_tokens,output_tokens`, plain or .gz), the seeded Poisson generator, and prompts
made up for traces that only know lengths. Knows no engine.
Invariant: arrival times never go back; equal files and equal seeds give equal requests.
"""

from __future__ import annotations

import csv
import gzip
import math
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from plait.core.errors import UsageError
from plait.core.ids import RequestId
from plait.core.request import Request, Slo
from plait.core.sampling import SamplingParams
from plait.sim.prompts import made_up_prompt

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace: its time and its lengths in tokens."""

    at_s: float
    num_prompt: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    request: Request


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal lengths in tokens: `mean` before cutting to 1 .. `longest`, `sigma` of the logarithm (0: all equal)."""

    mean: float
    sigma: float
    longest: int

    def draw(self, rng: random.Random) -> int:
        length = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return max(1, min(self.longest, round(length)))


def read_trace(path: Path, *, speed: float = 1.0, limit: int | None = None) -> list[TraceRow]:
    """The requests of a CSV trace. `speed` 2 plays it twice as fast; `limit` takes only so many. Other columns may be
    there. `UsageError` names the line that cannot be used.
    """
    if not speed > 0:
        raise UsageError(f"speed is {speed}; it must be positive (2 plays the trace twice as fast)")
    try:
        with _open_text(path) as file:
            return _read_rows(csv.DictReader(file), path, speed, limit)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a trace: {error}") from error


def poisson_trace(
    requests_per_s: float, num_requests: int, prompt: Lengths, output: Lengths, seed: int
) -> list[TraceRow]:
    """Independent arrivals at a mean rate; the first one comes after the first gap."""
    if not requests_per_s > 0:
        raise UsageError(f"the arrival rate is {requests_per_s} requests/s; it must be positive")
    rng = random.Random(seed)
    rows: list[TraceRow] = []
    at_s = 0.0
    for _ in range(num_requests):
        at_s += rng.expovariate(requests_per_s)
        rows.append(TraceRow(at_s, prompt.draw(rng), output.draw(rng)))
    return rows


def arrivals_of(rows: Iterable[TraceRow], vocab_size: int, slo: Slo | None = None) -> Iterator[Arrival]:
    """Requests for the rows of a trace: made-up prompts that share no prefix, so that none is looked for or kept, and
    exactly the row's output tokens.
    """
    for index, row in enumerate(rows):
        request = Request(
            id=RequestId(f"trace-{index}"),
            prompt=made_up_prompt(index, row.num_prompt, vocab_size),
            sampling=SamplingParams(seed=index, max_tokens=row.num_output, ignore_eos=True),
            slo=Slo() if slo is None else slo,
            cache_prefix=False,
        )
        yield Arrival(row.at_s, request)


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _read_rows(reader: csv.DictReader[str], path: Path, speed: float, limit: int | None) -> list[TraceRow]:
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{path}, line 1: column {missing[0]} is missing; a trace needs {','.join(COLUMNS)}")
    rows: list[TraceRow] = []
    for fields in reader:
        if limit is not None and len(rows) >= limit:
            break
        place = f"{path}, line {reader.line_num}"
        at_s = _seconds(fields["arrival_s"], place) / speed
        if rows and at_s < rows[-1].at_s:
            raise UsageError(
                f"{place}: arrival_s {fields['arrival_s']} lies before the line above; sort the trace by time"
            )
        rows.append(TraceRow(at_s, _count(fields, "input_tokens", place), _count(fields, "output_tokens", place)))
    return rows


def _seconds(text: str | None, place: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{place}: arrival_s is {text!r}; it must be seconds from the start, 0 or more")
    return value


def _count(fields: Mapping[str, str | None], column: str, place: str) -> int:
    text = fields[column]
    if text is None or not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError(f"{place}: {column} is {text!r}; it must be a whole number of tokens, 1 or more")
    return int(text)
