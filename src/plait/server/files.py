"""Files: /v1/files, for batches.

Owns uploads from the network to the disk, and downloads back. Looks into no file: a batch does.
Invariant: however large a file is, memory holds a piece of it; an upload that ends early leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from plait.api.bodies import shown
from plait.batch.records import StoredFile
from plait.batch.service import BatchService
from plait.core.errors import RequestError
from plait.server.identity import tenant_of
from plait.server.incoming import body_pieces
from plait.server.paging import page_of
from plait.server.replies import Json
from plait.server.serving import Serving

MAX_FIELD_BYTES = 4096
MAX_FIELDS = 32
MOST_LISTED = 10_000
_LOG = logging.getLogger("plait.server")
_PURPOSES = ("batch", "user_data", "evals", "assistants", "fine-tune", "vision")
_DAY_S = 86_400
_MAX_LIFE_S = 30 * _DAY_S
_SPARE_BYTES = 64 * 1024


class Files:
    """The routes. `max_bytes`: of one file."""

    def __init__(self, batches: BatchService, max_bytes: int) -> None:
        self._batches = batches
        self._store = batches.store
        self._max_bytes = max_bytes

    async def upload(self, serving: Serving, request: Request) -> Response:
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise RequestError(
                "a file is uploaded as multipart/form-data with the fields file and purpose",
                status=415,
                code="unsupported_media_type",
            )
        file_id = f"file-{serving.new_id()}"
        path = self._store.incoming(file_id)
        try:
            with path.open("wb") as out:
                form = _Form(bytes(boundary), out, self._max_bytes)
                most = self._max_bytes + _SPARE_BYTES
                async for piece in body_pieces(request, most, lambda _, most: too_large(most - _SPARE_BYTES)):
                    await asyncio.to_thread(form.feed, piece)
                form.end()
                await asyncio.to_thread(_sync, out)
            stored = self._stored(file_id, tenant_of(request), form, serving.unix_now())
            await self._batches.at_store(self._store.add_file, stored)
        finally:
            path.unlink(missing_ok=True)
        return Json(stored.body())

    async def list(self, serving: Serving, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        files = await self._batches.at_store(self._store.files, tenant_of(request), purpose, serving.unix_now())
        return Json(page_of(request, [file.body() for file in files], MOST_LISTED))

    async def get(self, serving: Serving, request: Request) -> Response:
        return Json((await self._file(serving, request)).body())

    async def content(self, serving: Serving, request: Request) -> Response:
        file = await self._file(serving, request)
        if not await asyncio.to_thread(self._store.path(file).is_file):
            _LOG.error("file is gone", extra={"fields": {"file": file.id}})
            raise RequestError(
                f"the content of {file.id} is no longer on the server's disk; upload it again",
                param="id",
                code="content_lost",
                status=410,
            )
        return FileResponse(self._store.path(file), media_type="application/octet-stream")

    async def delete(self, serving: Serving, request: Request) -> Response:
        file = await self._file(serving, request)
        await self._batches.delete_file(file)
        return Json({"id": file.id, "object": "file", "deleted": True})

    async def _file(self, serving: Serving, request: Request) -> StoredFile:
        name, tenant = request.path_params["id"], tenant_of(request)
        return await self._batches.at_store(self._store.file, name, tenant, serving.unix_now())

    def _stored(self, file_id: str, tenant: str, form: _Form, now: int) -> StoredFile:
        if form.filename is None:
            raise RequestError("the field file is missing; send the file's content in it", param="file")
        purpose = form.fields.get("purpose")
        if purpose not in _PURPOSES:
            raise RequestError(
                f"purpose is {shown(purpose)}; it must be one of {', '.join(_PURPOSES)}", param="purpose"
            )
        stored = StoredFile(file_id, tenant, form.filename, purpose, form.num_bytes, now)
        seconds = form.fields.get("expires_after[seconds]")
        return stored if seconds is None else replace(stored, expires_at=now + life_s(seconds, "expires_after.seconds"))


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())


def life_s(given: object, path: str) -> int:
    """Seconds that a file is to be kept."""
    text = str(given)
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 3600 <= int(text) <= _MAX_LIFE_S):
        raise RequestError(
            f"{path} is {shown(given)}; it must be a number of seconds from 3600 to {_MAX_LIFE_S}", param=path
        )
    return int(text)


class _Form:
    """A form that arrives in pieces: small fields are kept, the field `file` goes to the disk."""

    def __init__(self, boundary: bytes, out: BinaryIO, max_bytes: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.num_bytes = 0
        self._out = out
        self._max_bytes = max_bytes
        self._name = ""
        self._is_file = False
        self._held = bytearray()
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._is_whole = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header_name.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._take,
                "on_part_end": self._end_part,
                "on_end": self._end_form,
            },
        )

    def feed(self, piece: bytes) -> None:
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise RequestError(f"the form cannot be read: {error}", code="invalid_form") from error

    def end(self) -> None:
        if not self._is_whole:
            raise RequestError("the form ends before its last boundary", code="invalid_form")

    def _begin(self) -> None:
        self._disposition = b""
        self._held.clear()

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._name == "file"
        if len(self.fields) >= MAX_FIELDS:
            raise RequestError(f"the form has more than {MAX_FIELDS} fields; file and purpose are enough")
        if self._is_file:
            if self.filename is not None:
                raise RequestError("the field file is there twice; upload one file at a time", param="file")
            given = options.get(b"filename", b"upload.jsonl").decode("utf-8", "replace")
            self.filename = Path(given.replace("\\", "/")).name[:200] or "upload.jsonl"

    def _take(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._held += data[start:end]
            if len(self._held) > MAX_FIELD_BYTES:
                raise RequestError(
                    f"the field {self._name[:60]!r} has more than {MAX_FIELD_BYTES} bytes", param=self._name[:60]
                )
            return
        self.num_bytes += end - start
        if self.num_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        self._out.write(data[start:end])

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._held.decode("utf-8", "replace")

    def _end_form(self) -> None:
        self._is_whole = True


def too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"the file has more than {max_bytes:,} bytes, which is the limit (--max-file-size)",
        status=413,
        code="file_too_large",
    )
