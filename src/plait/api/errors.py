"""Errors: how trouble looks in JSON.

Owns the error body of the OpenAI API. All four keys are always there; null where nothing is to be said.
"""

from __future__ import annotations

from plait.api.bodies import JsonObject
from plait.core.errors import RequestError


def error_body(error: RequestError) -> JsonObject:
    """The body of a 4xx or 5xx answer."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def engine_failure(reason: str) -> RequestError:
    """A request that the engine could not compute: our fault, not the caller's."""
    return RequestError(
        f"the engine could not compute this answer: {reason}", status=500, kind="internal_error", code="engine_failure"
    )
