"""Inspect server: `plait inspect memory http://HOST:PORT`, where a running server's KV memory is.

Owns one GET of /debug/memory and the table for people. Starts nothing and keeps no connection.
Invariant: whatever answers there, this ends within `PATIENCE_S` for each read, and reads `MAX_BYTES` at most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from textwrap import wrap
from urllib.parse import urlsplit

from plait.cli.printable import printable
from plait.cli.units import bytes_text, count_text, percent
from plait.core.errors import PlaitError, UsageError

PATIENCE_S = 10.0
MAX_BYTES = 1 << 22
WIDTH = 100
SERVERS = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Told:
    """A JSON object of a server; what it lacks is a trouble with a name."""

    values: Mapping[str, object]
    where: str

    def number(self, name: str) -> float:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PlaitError(f"{self.where} says no number for {name}; is it a Plait server of this version?")
        return value

    def whole(self, name: str) -> int:
        return int(self.number(name))

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return printable(value) if isinstance(value, str) else ""

    def table(self, name: str) -> Told:
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise PlaitError(f"{self.where} says nothing about {name}; is it a Plait server of this version?")
        return Told({str(key): one for key, one in value.items()}, self.where)

    def tables(self, name: str) -> list[Told]:
        value = self.values.get(name)
        rows = value if isinstance(value, list) else []
        return [Told({str(key): one for key, one in row.items()}, self.where) for row in rows if isinstance(row, dict)]

    def words(self, name: str) -> list[str]:
        value = self.values.get(name)
        return [printable(str(one)) for one in value] if isinstance(value, list) else []


def ask_server(url: str, api_key: str | None) -> Mapping[str, object]:
    """What the server at `url` says about its memory; `PlaitError` or `UsageError` where it says nothing."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no address ({error}); write http://HOST:PORT") from None
    if not parts.hostname:
        raise UsageError(f"{url!r} is no address of a server; write http://HOST:PORT")
    path = f"{parts.path.rstrip('/').removesuffix('/v1')}/debug/memory"
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {api_key}"} if api_key else {})
        reply = connection.getresponse()
        status, body = reply.status, reply.read(MAX_BYTES + 1)
    except (OSError, HTTPException, UnicodeError, ValueError) as error:
        raise PlaitError(
            f"no answer from {url}: {str(error) or type(error).__name__}; is the server running?"
        ) from None
    finally:
        connection.close()
    return _object(url, path, status, body)


def _object(url: str, path: str, status: int, body: bytes) -> Mapping[str, object]:
    if status == 401:
        raise UsageError(f"{url} asks for a key; give it with --api-key or in PLAIT_API_KEY")
    if status == 404:
        raise PlaitError(f"{url} knows no {path}; it is no Plait server, or one that is older")
    if status != 200:
        raise PlaitError(f"{url}{path} answers {status}; look again when the server is ready (/health)")
    try:
        found = json.loads(body, parse_constant=_no_number) if len(body) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PlaitError(f"{url}{path} answers with something else than one JSON object; is it a Plait server?")
    return {str(key): value for key, value in found.items()}


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number in JSON")


def live_lines(told: Told) -> list[str]:
    """The table for people, at most 100 columns wide."""
    total = told.number("total_bytes")
    ablated = told.words("ablated")
    lines = [
        f"layout  {told.text('layout')}" + (f", without {', '.join(ablated)}" if ablated else ""),
        f"memory  {bytes_text(total)}: {_part(told, 'used_bytes', total)} used, "
        f"{_part(told, 'evictable_bytes', total)} cached, {_part(told, 'free_bytes', total)} free, "
        f"{bytes_text(told.number('waste_bytes'))} wasted",
        f"pages   {told.whole('pages'):,} of {bytes_text(told.number('page_bytes'))}, "
        f"{told.whole('free_pages'):,} free; room for {count_text(told.whole('available_tokens'))} of "
        f"{count_text(told.whole('capacity_tokens'))} tokens of one sequence; {told.whole('sequences')} running",
    ]
    if told.text("geometry"):
        lines += wrap(told.text("geometry"), WIDTH, initial_indent="cut     ", subsequent_indent=" " * 8)
    prefix = told.table("prefix")
    asked = prefix.number("asked_tokens")
    found = percent(prefix.number("hit_fraction"))
    lines += [
        f"hits    {count_text(prefix.whole('hit_tokens'))} of {count_text(int(asked))} prompt tokens, {found}; "
        f"{count_text(prefix.whole('evictions'))} blocks given up",
        "",
        f"{'group':<26}{'layers':>7}{'used':>9}{'cached':>9}{'free':>9}{'waste':>9}{'could hit':>12}{'lost hits':>12}",
        *(_row(group, asked) for group in told.tables("groups")),
    ]
    for said in told.words("explained"):
        lines += ["", *wrap(said, WIDTH - 2, initial_indent="  ", subsequent_indent="    ")]
    return lines


def _part(told: Told, name: str, total: float) -> str:
    return percent(told.number(name) / total if total else 0.0)


def _row(group: Told, asked: float) -> str:
    blocks = group.table("blocks")
    used = blocks.whole("used") + blocks.whole("quarantined")
    hits: Sequence[float] = [group.number("allowed_hit_tokens"), group.number("lost_hit_tokens")]
    shares = "".join(f"{percent(tokens / asked if asked else 0.0):>12}" for tokens in hits)
    return (
        f"{group.text('name')[:25]:<26}{group.whole('layers'):>7}{used:>9,}{blocks.whole('cached'):>9,}"
        f"{blocks.whole('free'):>9,}{percent(group.number('waste_fraction')):>9}{shares}"
    )
