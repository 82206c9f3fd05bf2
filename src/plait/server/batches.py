"""Batches: /v1/batches over HTTP.

Owns the body that creates a batch. What a batch is and does is the batch room's business.
"""

from __future__ import annotations

from functools import partial
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
from plait.server.files import life_s
from plait.server.identity import tenant_of
from plait.server.incoming import read_json
from plait.server.paging import page_of
from plait.server.replies import Json
from plait.server.serving import Serving

MOST_LISTED = 100
WINDOW_S = 86_400
MAX_METADATA, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512


class ExpiresAfter(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    anchor: Literal["created_at"]
    seconds: Integer


class BatchFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
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
        expires = fields.output_expires_after
        record = BatchRecord(
            id=f"batch_{serving.new_id()}",
            tenant=tenant,
            input_file_id=file.id,
            endpoint=endpoint,
            completion_window=fields.completion_window,
            created_at=now,
            expires_at=now + WINDOW_S,
            output_expires_after_s=None if expires is None else life_s(expires.seconds, "output_expires_after.seconds"),
            metadata=fields.metadata,
            model=serving.names[0],
        )
        check = partial(serving.watching.quotas.check_batches, tenant)
        return Json((await self._batches.create(record, check)).body())

    async def list(self, serving: Serving, request: Request) -> Response:
        records = await self._batches.all_of(tenant_of(request))
        return Json(page_of(request, [record.body() for record in records], MOST_LISTED))

    async def get(self, serving: Serving, request: Request) -> Response:
        return Json((await self._batches.get(request.path_params["id"], tenant_of(request))).body())

    async def cancel(self, serving: Serving, request: Request) -> Response:
        return Json((await self._batches.cancel(request.path_params["id"], tenant_of(request))).body())


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
