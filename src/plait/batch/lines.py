"""Lines: the envelope of each request in an input file.

Owns custom_id, method and url, and which of their faults a line can have. Knows no field of a body.
Invariant: every line that is not blank gives exactly one `BatchLine` or `LineFault`, in the order of the file, and no
two `BatchLine`s have the same custom_id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plait.api.bodies import JsonObject, JsonValue, read_object, shown
from plait.api.calls import Endpoint
from plait.batch.source import MAX_LINE_BYTES, RawLine, Source
from plait.core.errors import RequestError

METHOD = "POST"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of an input file. Its method is POST; `url` is one that we serve. `offset`: where it begins there."""

    number: int
    custom_id: str
    url: Endpoint
    body: JsonObject
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LineFault:
    """Why a line is no request. `custom_id` as far as it could be read."""

    number: int
    custom_id: str | None
    code: str
    message: str
    param: str | None = None


def read_lines(source: Source) -> Iterator[BatchLine | LineFault]:
    """Every line of the input, parsed; of lines with one custom_id, all but the first are faults."""
    first_use: dict[str, int] = {}
    for raw in source.lines():
        line = parse_line(raw)
        if line.custom_id is None:
            yield line
            continue
        first = first_use.setdefault(line.custom_id, line.number)
        if isinstance(line, BatchLine) and first != line.number:
            yield LineFault(
                line.number,
                line.custom_id,
                "duplicate_custom_id",
                f"custom_id {line.custom_id[:60]!r} is already used on line {first}; give each line its own",
                "custom_id",
            )
        else:
            yield line


def parse_line(line: RawLine) -> BatchLine | LineFault:
    """One line by itself."""
    if line.raw is None:
        message = f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB; split the request"
        return LineFault(line.number, None, "line_too_long", message)
    try:
        envelope = read_object(line.raw)
    except RequestError as error:
        return LineFault(line.number, None, "invalid_json_line", error.message)
    return _envelope(line.number, envelope, line.offset)


def _envelope(number: int, envelope: JsonObject, offset: int) -> BatchLine | LineFault:
    custom_id = envelope.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        code = "missing_custom_id" if custom_id is None else "invalid_custom_id"
        message = f"custom_id is {shown(custom_id)}; it must be a string that names this line in the output"
        return LineFault(number, None, code, message, "custom_id")
    method, url, body = envelope.get("method"), envelope.get("url"), envelope.get("body")
    if method != METHOD:
        message = f'method is {shown(method)}; it must be "{METHOD}"'
        return LineFault(number, custom_id, "invalid_method", message, "method")
    endpoint = _endpoint(url)
    if endpoint is None:
        message = f"url is {shown(url)}; it must be one of {', '.join(Endpoint)}"
        return LineFault(number, custom_id, "invalid_url", message, "url")
    if not isinstance(body, dict):
        message = f"body is {shown(body)}; it must be the JSON object of a request"
        return LineFault(number, custom_id, "invalid_body", message, "body")
    return BatchLine(number, custom_id, endpoint, body, offset)


def _endpoint(url: JsonValue) -> Endpoint | None:
    return next((endpoint for endpoint in Endpoint if endpoint.value == url), None)
