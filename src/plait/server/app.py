"""App: which path leads where.

Owns the table of routes. Decides nothing about a request; what stands around all of them is in `layers`.
Invariant: no exception leaves a route but as an error reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from plait.api.calls import Endpoint
from plait.batch.service import BatchService
from plait.core.errors import EngineStopped, RequestError
from plait.server.batches import Batches
from plait.server.files import Files
from plait.server.generating import generate
from plait.server.incoming import ClientGone
from plait.server.keeping import keeping
from plait.server.layers import Layers, layered
from plait.server.models import is_alive, is_well, list_models, load, one_model
from plait.server.replies import Json, as_request_error, error_reply
from plait.server.responding import not_kept, respond
from plait.server.serving import Serving, Work, unavailable
from plait.server.tokens import detokenize, tokenize, tokenizer_info

RouteOf = tuple[str, str, Work]
"""Method, path, work."""

_LOG = logging.getLogger("plait.server")


def batch_routes(batches: BatchService, max_file_bytes: int) -> tuple[RouteOf, ...]:
    files, jobs = Files(batches, max_file_bytes), Batches(batches)
    table: tuple[RouteOf, ...] = (
        ("POST", "/v1/files", files.upload),
        ("GET", "/v1/files", files.list),
        ("GET", "/v1/files/{id}", files.get),
        ("DELETE", "/v1/files/{id}", files.delete),
        ("GET", "/v1/files/{id}/content", files.content),
        ("POST", "/v1/batches", jobs.create),
        ("GET", "/v1/batches", jobs.list),
        ("GET", "/v1/batches/{id}", jobs.get),
        ("POST", "/v1/batches/{id}/cancel", jobs.cancel),
    )
    return tuple((method, path, keeping(work)) for method, path, work in table)


def make_app(serving: Serving, layers: Layers, version: str, further: Sequence[RouteOf] = ()) -> ASGIApp:
    chat, completions = partial(_generate, Endpoint.CHAT), partial(_generate, Endpoint.COMPLETIONS)
    embeddings = partial(_generate, Endpoint.EMBEDDINGS)

    async def tell_version(serving: Serving, request: Request) -> Response:
        return Json({"version": version})

    table: list[RouteOf] = [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/chat/completions", chat),
        ("POST", "/v1/completions", completions),
        ("POST", "/completions", completions),
        ("POST", "/v1/embeddings", embeddings),
        ("POST", "/embeddings", embeddings),
        ("POST", "/v1/responses", respond),
        ("GET", "/v1/responses/{id}", not_kept),
        ("DELETE", "/v1/responses/{id}", not_kept),
        ("POST", "/v1/responses/{id}/cancel", not_kept),
        ("GET", "/v1/models", list_models),
        ("GET", "/models", list_models),
        ("GET", "/v1/models/{name:path}", one_model),
        ("POST", "/tokenize", tokenize),
        ("POST", "/detokenize", detokenize),
        ("GET", "/tokenizer_info", tokenizer_info),
        ("GET", "/health", is_well),
        ("GET", "/ready", is_well),
        ("GET", "/v1/health/ready", is_well),
        ("GET", "/live", is_alive),
        ("GET", "/ping", is_alive),
        ("GET", "/load", load),
        ("GET", "/version", tell_version),
        *further,
    ]
    by_path: dict[str, dict[str, Work]] = {}
    for method, path, work in table:
        by_path.setdefault(path, {})[method] = work
    # One route for each path, so that whoever is refused learns of all its methods.
    routes = [Route(path, _endpoint(serving, works), methods=list(works)) for path, works in by_path.items()]
    return layered(routes, layers)


async def _generate(endpoint: Endpoint, serving: Serving, request: Request) -> Response:
    return await generate(serving, endpoint, request)


def _endpoint(serving: Serving, works: Mapping[str, Work]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await works["GET" if request.method == "HEAD" else request.method](serving, request)
        except (RequestError, EngineStopped) as error:
            return error_reply(as_request_error(error))
        except ClientGone:
            return Response(status_code=499)
        except asyncio.CancelledError:
            # Nobody else cancels a request: the server ends and does not wait for the rest of a body.
            if not serving.is_draining:
                raise
            return error_reply(unavailable("the server stopped before the request was whole; send it again", "stopped"))
        except Exception as fault:  # the outermost loop of a request: nobody else may notice
            _LOG.exception("request failed", extra={"fields": {"request_id": request.state.request_id}})
            return error_reply(as_request_error(fault))

    return endpoint
