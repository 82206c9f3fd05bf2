"""Replies: JSON to clients, errors above all.

Owns the headers that tell a client whether and when to try again. Invariant: whatever goes wrong, the body is the error
object of the OpenAI API with all four keys, and never a trace.
"""

from __future__ import annotations

import math

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from plait.api.bodies import JsonObject
from plait.api.errors import error_body
from plait.core.errors import EngineStopped, RequestError

RETRY_AFTER_S = {429: 1, 503: 5}
MOST_RETRY_AFTER_S = 120.0
"""The OpenAI SDKs do not believe a longer wait and come back at once."""

_KINDS = {401: "authentication_error", 404: "not_found_error", 405: "invalid_request_error"}


class Json(Response):
    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return orjson.dumps(content)


def error_reply(error: RequestError) -> Response:
    headers = {}
    if error.retry_after_s is not None:
        # In whole seconds as HTTP has it, and as the OpenAI SDKs read it.
        after_s = min(error.retry_after_s, MOST_RETRY_AFTER_S)
        headers["retry-after"] = str(max(1, math.ceil(after_s)))
        headers["retry-after-ms"] = str(max(1, math.ceil(after_s * 1000)))
    elif error.status in RETRY_AFTER_S:
        headers["retry-after"] = str(RETRY_AFTER_S[error.status])
    elif error.status >= 500:
        # The same again would fail the same way, and SDKs try three times.
        headers["x-should-retry"] = "false"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Json(error_body(error), error.status, headers)


def as_request_error(trouble: BaseException) -> RequestError:
    """What a client is told of any trouble."""
    if isinstance(trouble, RequestError):
        return trouble
    if isinstance(trouble, EngineStopped):
        return RequestError(str(trouble), status=503, kind="service_unavailable", code="engine_stopped")
    return RequestError(
        "something went wrong in the server; its log has the trace under this request's id",
        status=500,
        kind="internal_error",
        code="internal_error",
    )


async def framework_error(request: Request, trouble: Exception) -> Response:
    """What the framework itself refuses: routes that do not exist, methods that they do not have. On the loop: it is
    less work than to ask a thread for it, which would also keep the request for a while.
    """
    assert isinstance(trouble, HTTPException)
    # Not the path of the URL: one that begins with two slashes is taken for a host there.
    path, status = str(request.scope["path"]), trouble.status_code
    if status == 404:
        message = f"there is nothing at {path}; /docs and /openapi.json list what there is"
        if path.startswith("/v1/v1/"):
            message = f"there is nothing at {path}: the base URL ends in /v1 and so does the client's path; drop one"
    elif status == 405:
        message = f"{path} does not take {request.method}"
    else:
        message = trouble.detail
    error = RequestError(message, status=status, kind=_KINDS.get(status, "invalid_request_error"), code=_code(status))
    reply = error_reply(error)
    if status == 405 and trouble.headers:
        reply.headers.update(trouble.headers)
    return reply


async def own_fault(request: Request, trouble: Exception) -> Response:
    """What a reply met while it was sent. The framework logs its trace."""
    return error_reply(as_request_error(trouble))


def _code(status: int) -> str | None:
    return {404: "not_found", 405: "method_not_allowed"}.get(status)


def one_line(value: JsonObject) -> bytes:
    return orjson.dumps(value)
