"""Batches: /v1/batches over HTTP.

Owns the body that creates a batch. What a batch is and does is the batch room's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from plait.api.bodies import shown
from plait.api.calls import Endpoint
from plait.api.checking import LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES, Integer, checked
from plait.batch.records import BatchRecord
from plait.batch.service import BatchService
from plait.core.errors import RequestError
from plait.core.moments import parse_duration, parse_moment
from plait.server.files import life_s
from plait.server.identity import tenant_of
from plait.server.incoming import read_json
from plait.server.paging import page_of
from plait.server.replies import Json
from plait.server.serving import Serving

MOST_LISTED = 100
LEAST_WINDOW_S, MOST_WINDOW_S = 60, 7 * 86_400
MAX_METADATA, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512


class ExpiresAfter(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    anchor: Literal["created_at"]
    seconds: Integer


class BatchFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class Batches:
    """The routes."""

    def __init__(self, batches: BatchService) -> None:
        self._batches = batches

    async def create(self, serving: Serving, request: Request) -> Response:
        serving.check_open()
        fields = checked(BatchFields, await read_json(request, serving.limits.max_body_bytes, serving.beside_loop))
        tenant, now = tenant_of(request), serving.unix_now()
        endpoint = next((one for one in Endpoint if one.value == fields.endpoint), None)
        if endpoint is None:
            raise RequestError(
                f"endpoint is {shown(fields.endpoint)}; it must be one of {', '.join(Endpoint)}", param="endpoint"
            )
        file = await self._batches.at_store(self._batches.store.file, fields.input_file_id, tenant, now)
        if file.purpose != "batch":
            raise RequestError(
                f"input_file_id names a file uploaded for {file.purpose}; upload it with the purpose batch",
                param="input_file_id",
            )
        _check_metadata(fields.metadata)
        window_s, finish_by = _window_s(fields.completion_window), _finish_by(fields.metadata, now)
        quotas = serving.watching.quotas
        max_lines, max_tokens = quotas.batch_limits(tenant)
        num_lines = 0
        if max_lines is not None:
            num_lines = await asyncio.to_thread(_num_lines, self._batches.store.path(file))
        expires = fields.output_expires_after
        record = BatchRecord(
            id=f"batch_{serving.new_id()}",
            tenant=tenant,
            input_file_id=file.id,
            endpoint=endpoint,
            completion_window=fields.completion_window.strip(),
            created_at=now,
            expires_at=now + window_s,
            output_expires_after_s=None if expires is None else life_s(expires.seconds, "output_expires_after.seconds"),
            metadata=fields.metadata,
            model=serving.names[0],
            finish_by=finish_by,
            queued_lines=num_lines,
            max_queued_tokens=max_tokens,
        )

        def check(unfinished: Sequence[BatchRecord]) -> None:
            quotas.check_batches(tenant, len(unfinished), sum(one.queued_lines for one in unfinished), num_lines)

        return Json((await self._batches.create(record, check)).body())

    async def list(self, serving: Serving, request: Request) -> Response:
        records = await self._batches.all_of(tenant_of(request))
        return Json(page_of(request, [record.body() for record in records], MOST_LISTED))

    async def get(self, serving: Serving, request: Request) -> Response:
        return Json((await self._batches.get(request.path_params["id"], tenant_of(request))).body())

    async def cancel(self, serving: Serving, request: Request) -> Response:
        return Json((await self._batches.cancel(request.path_params["id"], tenant_of(request))).body())


def _window_s(text: str) -> int:
    seconds = parse_duration(text)
    if seconds is None or not LEAST_WINDOW_S <= seconds <= MOST_WINDOW_S:
        raise RequestError(
            f"completion_window is {shown(text)}; it must be a duration from 1m to 7d, such as 24h",
            param="completion_window",
        )
    return int(seconds)


def _finish_by(metadata: Mapping[str, str] | None, now: int) -> int | None:
    """What `metadata.finish_by` asks for. It is a wish: a batch that is late goes on until it expires."""
    text = (metadata or {}).get("finish_by")
    if text is None:
        return None
    try:
        return int(parse_moment(text, datetime.fromtimestamp(now, UTC), is_local=False).timestamp())
    except ValueError as error:
        raise RequestError(f"metadata.finish_by is {shown(text)}; {error}", param="metadata") from None


def _num_lines(path: Path) -> int:
    """Lines that are not blank."""
    with path.open("rb") as file:
        return sum(bool(line.strip()) for line in file)


def _check_metadata(metadata: dict[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > MAX_METADATA:
        raise RequestError(f"metadata has {len(metadata)} keys; at most {MAX_METADATA} are kept", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS:
            raise RequestError(
                f"metadata.{key[:60]} is longer than {MAX_KEY_CHARS} characters of key or {MAX_VALUE_CHARS} of value",
                param="metadata",
            )
