"""Layers: what stands around every route.

Owns their order: request ids outside, then cross-origin rules, then keys. Knows no route.
Invariants: a route that does work is behind the keys; no layer touches a reply behind its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from plait.server.events import WIRE
from plait.server.identity import Keys, RequestIds, RequireKey
from plait.server.replies import framework_error, own_fault


@dataclass(frozen=True, slots=True)
class Layers:
    """`origins`: whose browsers may call. `now` gives seconds for measuring, `new_id` a word that nobody else has."""

    keys: Keys
    origins: tuple[str, ...]
    new_id: Callable[[], str]
    now: Callable[[], float]


def layered(routes: Sequence[Route], layers: Layers) -> ASGIApp:
    """An application of these routes."""
    stack = [Middleware(RequestIds, layers.new_id, layers.now)]
    if layers.origins:
        stack.append(_cross_origin(layers.origins))
    stack.append(Middleware(RequireKey, layers.keys))
    handlers = {HTTPException: framework_error, Exception: own_fault}
    inside = Starlette(routes=list(routes), middleware=stack, exception_handlers=handlers)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        scope[WIRE] = send
        try:
            await inside(scope, receive, send)
        finally:
            # `send` knows its scope: kept, the two would be garbage that only a collection finds.
            del scope[WIRE]

    return application


def under(root: str, app: ASGIApp) -> ASGIApp:
    """The application as a proxy shows it: some proxies take `root` off the paths that they pass on, some do not."""
    if not root:
        return app

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == root or path.startswith(f"{root}/"):
            scope = {**scope, "path": path.removeprefix(root) or "/"}
        await app(scope, receive, send)

    return application


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
