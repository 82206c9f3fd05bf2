"""Outcomes: one finished line, in the shape of OpenAI's batch output.

Owns the output line and its ids. Ids are made from the input's digest and the line's number, so the same input gives
the same ids in every run. Invariant: an outcome has either a response or an error, never both; it is one line of JSON.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from plait.api.answers import Usage
from plait.api.bodies import JsonObject, write_line
from plait.api.errors import error_body
from plait.batch.lines import LineFault
from plait.core.errors import RequestError

STATUS_OK = 200


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """What becomes of line `number`. `output` is its line of the output file; `failed`: it holds no answer."""

    number: int
    custom_id: str | None
    output: str
    failed: bool
    usage: Usage
    request: bytes | None = None
    """What was asked, as `plait.batch.folding.request_key` tells it, of a line that was answered."""
    is_folded: bool = False
    """Answered by what another line was told."""


def line_key(input_sha256: str, number: int) -> str:
    """The part that the ids of one line have in common."""
    return hashlib.blake2b(f"{input_sha256}:{number}".encode(), digest_size=12).hexdigest()


def answered(key: str, number: int, custom_id: str, body: JsonObject, usage: Usage) -> LineOutcome:
    return LineOutcome(number, custom_id, _response(key, custom_id, STATUS_OK, body), failed=False, usage=usage)


def refused(key: str, number: int, custom_id: str, error: RequestError) -> LineOutcome:
    """A request that was executed and could not be served: the status and body that a server would send."""
    output = _response(key, custom_id, error.status, error_body(error))
    return LineOutcome(number, custom_id, output, failed=True, usage=Usage())


def never_run(key: str, fault: LineFault) -> LineOutcome:
    """A line that was no request at all."""
    error: JsonObject = {"code": fault.code, "message": fault.message, "param": fault.param, "line": fault.number}
    line: JsonObject = {"id": f"batch_req_{key}", "custom_id": fault.custom_id, "response": None, "error": error}
    return LineOutcome(fault.number, fault.custom_id, write_line(line), failed=True, usage=Usage())


def _response(key: str, custom_id: str, status: int, body: JsonObject) -> str:
    return write_line(
        {
            "id": f"batch_req_{key}",
            "custom_id": custom_id,
            "response": {"status_code": status, "request_id": f"req_{key}", "body": body},
            "error": None,
        }
    )
