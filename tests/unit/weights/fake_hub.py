"""A model hub on this machine: the few answers that huggingface_hub asks for, and the ways in which they go wrong.

Owns a server in a thread. What it serves is a table of files that tests may change while it runs.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_a_test"
LARGE_BYTES = 1000
"""Files from here on are served from another place and have a checksum in the listing, as on the real hub."""


@dataclass
class FakeHub:
    files: dict[str, bytes]
    repository: str = "org/tiny"
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, "v1": "f" * 40})
    gated: bool = False
    needs_token: bool = False
    status: int = 200
    """Of everything, if it is not 200."""
    breaks: int = 0
    """How many of the next large downloads break off in the middle."""
    claims: dict[str, int] = field(default_factory=dict)
    """Sizes that the listing tells wrongly."""
    forged: dict[str, bytes] = field(default_factory=dict)
    """Files that are served with other bytes than the listing tells."""
    requests: list[str] = field(default_factory=list)
    address: str = ""

    def downloads(self) -> list[str]:
        """Files whose bytes were asked for, in order."""
        asked = [line.removeprefix("GET ") for line in self.requests if line.startswith("GET ")]
        found = [re.fullmatch(r"/cdn/(.+)|/org/tiny/resolve/[^/]+/(.+)", path) for path in asked]
        return [match[1] or match[2] for match in found if match]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(_Handler):
        shown = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    shown: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.shown, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        if path.startswith("/cdn/"):
            self._send_large(path.removeprefix("/cdn/"))
            return
        if hub.status != 200:
            self._fail(hub.status)
            return
        is_known = self.headers.get("authorization") == f"Bearer {TOKEN}"
        if not path.removeprefix("/api/models").startswith(f"/{hub.repository}/"):
            self._fail(401 if not is_known else 404, "RepoNotFound")
        elif (hub.gated or hub.needs_token) and not is_known:
            self._fail(401, "GatedRepo" if hub.gated else "RepoNotFound")
        elif match := re.fullmatch(r"/api/models/org/tiny/revision/(.+)", path):
            self._list(match[1])
        elif match := re.fullmatch(r"/org/tiny/resolve/([^/]+)/(.+)", path):
            self._send(match[1], match[2])
        else:
            self._fail(404)

    def _commit(self, revision: str) -> str | None:
        branches = self.shown.branches
        return branches.get(revision, revision if revision in branches.values() else None)

    def _list(self, revision: str) -> None:
        hub, commit = self.shown, self._commit(revision)
        if commit is None:
            self._fail(404, "RevisionNotFound")
            return
        siblings = []
        for name, raw in hub.files.items():
            size = hub.claims.get(name, len(raw))
            entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": hashlib.sha1(raw).hexdigest()}
            if len(raw) >= LARGE_BYTES:
                entry["lfs"] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": size, "pointerSize": 130}
            siblings.append(entry)
        self._reply(200, json.dumps({"id": hub.repository, "sha": commit, "siblings": siblings}).encode())

    def _send(self, revision: str, name: str) -> None:
        hub, commit = self.shown, self._commit(revision)
        raw = hub.files.get(name)
        if raw is None or commit is None:
            self._fail(404, "EntryNotFound" if commit else "RevisionNotFound")
            return
        if len(raw) < LARGE_BYTES:
            self._reply(200, raw, {"ETag": f'"{hashlib.sha1(raw).hexdigest()}"', "X-Repo-Commit": commit})
            return
        headers = {
            "X-Linked-Etag": f'"{hashlib.sha256(raw).hexdigest()}"',
            "X-Linked-Size": str(hub.claims.get(name, len(raw))),
            "X-Repo-Commit": commit,
            # Another host, or the library would look for the headers of a hub there.
            "Location": f"{hub.address.replace('127.0.0.1', 'localhost')}/cdn/{name}",
        }
        self._reply(302, b"", headers)

    def _send_large(self, name: str) -> None:
        hub = self.shown
        raw = hub.forged.get(name, hub.files[name])
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        if hub.breaks > 0 and self.command == "GET":
            hub.breaks -= 1
            self._reply(206 if match else 200, raw[start:], sent=(len(raw) - start) // 2)
            self.close_connection = True
            return
        self._reply(206 if match else 200, raw[start:])

    def _fail(self, status: int, code: str = "") -> None:
        self._reply(status, b"{}", {"X-Error-Code": code} if code else {})

    def _reply(self, status: int, raw: bytes, headers: dict[str, str] | None = None, sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw if sent is None else raw[:sent])
