"""Identity: who asks, and under which id.

Owns the check of API keys and the request ids. Invariant: every route that does work or tells of it is behind the keys,
whatever its path; keys are compared in constant time; a tenant's name tells nothing of its key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.core.errors import RequestError
from plait.server.replies import error_reply

PUBLIC_PATHS = ("/health", "/ready", "/live", "/ping", "/v1/health/ready", "/status")
"""These say whether the server is well; the page of /status says nothing before it was given a key."""

MAX_ID_CHARS = 128

_LOG = logging.getLogger("plait.server")


class Keys:
    """The keys that open the server; none: it is open."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant(self, given: str) -> str | None:
        """A name for whoever has this key, or None for a key that opens nothing. Looks at every key, found or not.
        `given` is as headers are read: one character a byte.
        """
        digest = hashlib.sha256(given.encode("latin-1", "replace")).digest()
        found = [known for known in self._digests if hmac.compare_digest(known, digest)]
        return _tenant_name(found[0]) if found else None


def tenant_of_key(key: str) -> str:
    """The name for whoever has this key."""
    return _tenant_name(hashlib.sha256(key.encode()).digest())


def _tenant_name(digest: bytes) -> str:
    return hashlib.sha256(b"tenant " + digest).hexdigest()[:16]


class RequireKey:
    """Lets nobody through without a key, but for paths that say only whether the server is well."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] not in PUBLIC_PATHS:
            tenant = self._keys.tenant(_given_key(Request(scope)))
            if tenant is None:
                await error_reply(_unknown_key())(scope, receive, send)
                return
            scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


class RequestIds:
    """Every reply names its request: by the id that the client chose, or a new one. One log line for each."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str], now: Callable[[], float]) -> None:
        self._app = app
        self._new_id = new_id
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Request(scope).headers.get("x-request-id", "")
        name = given if _is_fit(given) else f"req-{self._new_id()}"
        scope.setdefault("state", {})["request_id"] = name
        begun, status = self._now(), 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", name.encode())]}
            await send(message)

        try:
            await self._app(scope, receive, tell)
        finally:
            fields = {
                "request_id": name,
                "method": scope["method"],
                "path": scope["path"],
                "status": status or None,
                "seconds": round(self._now() - begun, 4),
            }
            _LOG.info("request", extra={"fields": fields})


def tenant_of(request: Request) -> str:
    """Who asks, as far as keys tell; empty where there are none."""
    return str(request.scope.get("state", {}).get("tenant", ""))


def request_id_of(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def _given_key(request: Request) -> str:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")


def _unknown_key() -> RequestError:
    return RequestError(
        "no valid API key was sent; send one as 'Authorization: Bearer KEY'",
        status=401,
        kind="authentication_error",
        code="invalid_api_key",
    )


def _is_fit(name: str) -> bool:
    return 0 < len(name) <= MAX_ID_CHARS and name.isascii() and name.isprintable()
