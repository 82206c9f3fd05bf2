"""Files and batches on a disk that is full: told as that, and nothing is left of what was not kept."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.unit.api.byte_text import byte_text
from tests.unit.batch.jobs import good_lines
from tests.unit.batch.scripted_client import ScriptedClient

from plait.api.calls import Endpoint
from plait.batch.records import BatchRecord, StoredFile
from plait.batch.service import BatchService, ServiceConfig
from plait.batch.store import Store
from plait.core.errors import PlaitError, RequestError
from plait.metrics.limit import WorkDone
from plait.server.app import batch_routes
from plait.server.serving import Limits, Serving, Work
from plait.server.turnover import Turnover

NOW = 1_700_000_000
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n--x--\r\n'
)


class Full:
    """The routes over a store that has a file and a batch, and whose database can grow no more."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(folder)
        text = json.dumps(good_lines(1)[0])
        self.file = self.store.write_file(StoredFile("file-in", "", "a", "batch", 0, NOW), [text])
        self.record = BatchRecord("batch_1", "", "file-in", Endpoint.CHAT, "24h", NOW, NOW + 3600)
        self.store.add_batch(self.record)
        self.before = self._files()
        names, client = ("byte-model",), ScriptedClient()
        ids = count()
        self.serving = Serving(
            client, byte_text(), names, Limits(8, 1 << 20), lambda: NOW, lambda: f"id{next(ids)}", Turnover(lambda: 0.0)
        )
        service = BatchService(
            ServiceConfig(names), self.store, client, byte_text(), lambda: NOW, lambda: 0.0, WorkDone
        )
        self.routes: dict[tuple[str, str], Work] = {
            (method, path): work for method, path, work in batch_routes(service, 1 << 20)
        }
        # As a disk that is full: filled up with the smallest rows, until no page has room for another one.
        pages = int(self.store._connection.execute("PRAGMA page_count").fetchone()[0])
        self.store._connection.execute(f"PRAGMA max_page_count = {pages}")
        for row in (
            "files VALUES (random(), '', '', '', 0, 0, NULL, 0)",
            "batches VALUES (random(), '', 1, x'', 0)",
        ):
            self._fill(f"INSERT INTO {row}")

    def _fill(self, insert: str) -> None:
        with suppress(sqlite3.OperationalError):  # full
            while True:
                self.store._connection.execute(insert)

    def ask(self, method: str, path: str, body: bytes, kind: bytes, name: str = "") -> Response:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", kind)],
            "path_params": {"id": name},
            "state": {"request_id": "req-1"},
        }
        return asyncio.run(self.routes[method, path](self.serving, Request(scope, receive)))  # type: ignore[arg-type]

    def _files(self) -> set[str]:
        return {path.name for path in (self.store.folder / "files").iterdir()}

    def left_over(self) -> set[str]:
        return self._files() - self.before


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    made = Full(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("POST", "/v1/files", FORM, b"multipart/form-data; boundary=x"),
        (
            "POST",
            "/v1/batches",
            json.dumps(
                {
                    "input_file_id": "file-in",
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                    "metadata": {"k": "v" * 500},
                }
            ).encode(),
            b"application/json",
        ),
    ],
)
def test_a_full_disk_is_told_and_leaves_nothing(full: Full, method: str, path: str, body: bytes, kind: bytes) -> None:
    for _ in range(3):
        with pytest.raises(RequestError) as caught:
            full.ask(method, path, body, kind)
        assert (caught.value.status, caught.value.code) == (507, "no_room")
        assert str(full.store.folder) not in caught.value.message
    assert not full.left_over()
    assert [one.id for one in full.store.unfinished_batches()] == ["batch_1"]
    assert [one.name for one in (full.store.folder / "batches").iterdir()] == ["batch_1"]


def test_what_is_refused_is_refused_as_ever(full: Full) -> None:
    with pytest.raises(RequestError) as caught:
        full.ask("GET", "/v1/files/{id}", b"", b"", "file-none")
    assert caught.value.status == 404


def test_content_whose_row_was_not_made_goes_back_to_where_it_came_from(full: Full) -> None:
    other = StoredFile("file-other", "", "b" * 2000, "batch", 2, NOW)
    full.store.incoming(other.id).write_bytes(b"{}")
    with pytest.raises(PlaitError):
        full.store.add_file(other)
    assert full.left_over() == {"file-other.incoming"}
