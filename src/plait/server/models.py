"""Models: what is served, and how it is.

Owns /v1/models, and what says whether the server is alive, ready and how busy. Waits for nothing: these answer in a
moment however much the engine has to do.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from plait.api.bodies import JsonObject
from plait.api.calls import check_model
from plait.server.replies import Json
from plait.server.serving import Serving


async def list_models(serving: Serving, request: Request) -> Response:
    return Json({"object": "list", "data": [_model(serving, name) for name in serving.names]})


async def one_model(serving: Serving, request: Request) -> Response:
    name = request.path_params["name"]
    check_model(name, serving.names)
    return Json(_model(serving, name))


async def is_alive(serving: Serving, request: Request) -> Response:
    """The process runs its event loop."""
    return Json({"status": "ok"})


async def is_well(serving: Serving, request: Request) -> Response:
    """The engine serves and takes work; 503 with the reason otherwise."""
    serving.check_open()
    return Json({"status": "ok"})


async def load(serving: Serving, request: Request) -> Response:
    health = serving.client.health()
    return Json(
        {
            "server_load": serving.num_open,
            "num_requests_running": health.num_running,
            "num_requests_waiting": health.num_waiting,
            "max_open": serving.limits.max_open,
        }
    )


def _model(serving: Serving, name: str) -> JsonObject:
    served = serving.client.model
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "plait",
        "root": served.name,
        "parent": None,
        "max_model_len": served.max_model_tokens,
    }
