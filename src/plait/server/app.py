"""App: which path leads where, and what stands around all of them.

Owns the table of routes and the order of the layers: request ids outside, then cross-origin rules, then keys. Decides
nothing about a request.
Invariant: no exception leaves a route but as an error reply; a route that does work is behind the keys.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
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
from plait.server.identity import Keys, RequestIds, RequireKey
from plait.server.incoming import ClientGone
from plait.server.models import is_alive, is_well, list_models, load, one_model
from plait.server.replies import Json, as_request_error, error_reply, framework_error, own_fault
from plait.server.responding import not_kept, respond
from plait.server.serving import Serving
from plait.server.tokens import detokenize, tokenize

Work = Callable[[Serving, Request], Awaitable[Response]]

_LOG = logging.getLogger("plait.server")


@dataclass(frozen=True, slots=True)
class AppOptions:
    keys: Keys
    origins: tuple[str, ...]
    version: str
    now: Callable[[], float]
    further: tuple[tuple[str, str, Work], ...] = ()
    """More routes: method, path, work."""


def batch_routes(batches: BatchService, max_file_bytes: int) -> tuple[tuple[str, str, Work], ...]:
    files, jobs = Files(batches, max_file_bytes), Batches(batches)
    return (
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


def make_app(serving: Serving, options: AppOptions) -> ASGIApp:
    chat, completions = partial(_generate, Endpoint.CHAT), partial(_generate, Endpoint.COMPLETIONS)

    async def version(serving: Serving, request: Request) -> Response:
        return Json({"version": options.version})

    table: list[tuple[str, str, Work]] = [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/chat/completions", chat),
        ("POST", "/v1/completions", completions),
        ("POST", "/completions", completions),
        ("POST", "/v1/responses", respond),
        ("GET", "/v1/responses/{id}", not_kept),
        ("DELETE", "/v1/responses/{id}", not_kept),
        ("POST", "/v1/responses/{id}/cancel", not_kept),
        ("GET", "/v1/models", list_models),
        ("GET", "/models", list_models),
        ("GET", "/v1/models/{name:path}", one_model),
        ("POST", "/tokenize", tokenize),
        ("POST", "/detokenize", detokenize),
        ("GET", "/health", is_well),
        ("GET", "/ready", is_well),
        ("GET", "/v1/health/ready", is_well),
        ("GET", "/live", is_alive),
        ("GET", "/ping", is_alive),
        ("GET", "/load", load),
        ("GET", "/version", version),
        *options.further,
    ]
    routes = [Route(path, _endpoint(serving, work), methods=[method]) for method, path, work in table]
    layers = [Middleware(RequestIds, serving.new_id, options.now)]
    if options.origins:
        layers.append(_cross_origin(options.origins))
    layers.append(Middleware(RequireKey, options.keys))
    handlers = {HTTPException: framework_error, Exception: own_fault}
    return Starlette(routes=routes, middleware=layers, exception_handlers=handlers)


async def _generate(endpoint: Endpoint, serving: Serving, request: Request) -> Response:
    return await generate(serving, endpoint, request)


def _endpoint(serving: Serving, work: Work) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await work(serving, request)
        except (RequestError, EngineStopped) as error:
            return error_reply(as_request_error(error))
        except ClientGone:
            return Response(status_code=499)
        except Exception as fault:  # the outermost loop of a request: nobody else may notice
            _LOG.exception("request failed", extra={"fields": {"request_id": request.state.request_id}})
            return error_reply(as_request_error(fault))

    return endpoint


def _cross_origin(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["x-request-id"],
        # Keys travel in a header of their own, so no cookie is ever needed.
        allow_credentials=False,
    )
