"""Door: what answers on the port, from the first moment on.

Owns the time before the model is there: the process is alive, nothing is ready, and the names that are served are known
as soon as anybody knows them. Loads nothing.
Invariant: a request is answered either as before or as after the opening, never by half of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from plait.api.bodies import JsonObject, JsonValue
from plait.core.errors import RequestError
from plait.server.layers import Layers, layered
from plait.server.replies import Json, error_reply
from plait.server.serving import unavailable


@dataclass(slots=True, eq=False)
class Door:
    """An application that becomes another one. `names`: what will be served, empty as long as nobody knows."""

    names: tuple[str, ...]
    created: int
    inside: ASGIApp | None = None

    def open(self, inside: ASGIApp) -> None:
        self.inside = inside

    def waiting_room(self, layers: Layers) -> ASGIApp:
        """What answers until the opening, then the application. Keys hold from the beginning."""

        async def alive(request: Request) -> Response:
            return Json({"status": "ok"})

        async def models(request: Request) -> Response:
            if not self.names:
                return error_reply(_loading())
            data: list[JsonValue] = [self._model(name) for name in self.names]
            return Json({"object": "list", "data": data})

        async def anything_else(request: Request) -> Response:
            return error_reply(_loading())

        before = layered(
            [
                *(Route(path, alive, methods=["GET"]) for path in ("/live", "/ping")),
                *(Route(path, models, methods=["GET"]) for path in ("/v1/models", "/models")),
                Route("/{path:path}", anything_else, methods=["GET", "POST", "DELETE", "PUT", "PATCH"]),
            ],
            layers,
        )

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await (self.inside or before)(scope, receive, send)

        return application

    def _model(self, name: str) -> JsonObject:
        return {"id": name, "object": "model", "created": self.created, "owned_by": "plait", "max_model_len": None}


def _loading() -> RequestError:
    return unavailable("the model is being loaded; try again in a few seconds", "loading")
