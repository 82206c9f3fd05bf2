"""Keeping: what a client is told when the disk behind files and batches fails.

Owns that one answer, for every route that uses the store. Mends nothing: what failed left no half behind.
"""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response

from plait.core.errors import EngineStopped, PlaitError, RequestError
from plait.server.serving import Serving, Work

_LOG = logging.getLogger("plait.server")


def keeping(work: Work) -> Work:
    """`work`, with trouble of the disk told as such: it is nobody's fault in the code, and may pass."""

    async def kept(serving: Serving, request: Request) -> Response:
        try:
            return await work(serving, request)
        except (RequestError, EngineStopped):
            raise
        except (OSError, PlaitError) as error:
            fields = {"request_id": request.state.request_id, "reason": str(error)}
            _LOG.error("not kept", extra={"fields": fields})
            raise RequestError(
                "this could not be kept or read: the server's disk is full or failing; its log says more",
                status=507,
                kind="internal_error",
                code="no_room",
            ) from error

    return kept
