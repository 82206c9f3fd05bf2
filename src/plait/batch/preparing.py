"""Preparing: from a line of the input to what is asked of the engine.

Owns what a batch adds to a body: the service class, a seed where the line has none, the refusal of streaming. Submits
nothing. Invariant: the same line of the same input always becomes the same call, whatever runs beside it and whenever.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from plait.api.calls import Call, check_model, for_tenant
from plait.api.endpoints import ID_PREFIXES, Body, call_of, model_of, parse_body, streams
from plait.api.model_text import ModelText
from plait.batch.lines import BatchLine
from plait.batch.outcomes import line_key
from plait.core.client import ModelInfo
from plait.core.errors import RequestError
from plait.core.request import Request, ServiceClass


class Preparer:
    """`seed` is where the seeds of lines without one come from. `tenant`: for whom, as far as keys tell."""

    def __init__(
        self,
        text: ModelText,
        model: ModelInfo,
        served_names: tuple[str, ...],
        input_sha256: str,
        seed: int,
        tenant: str = "",
    ) -> None:
        self._text = text
        self._model = model
        self._served = (model.name, *served_names)
        self._input_sha256 = input_sha256
        self._seed = seed
        self._tenant = tenant

    def key(self, number: int) -> str:
        return line_key(self._input_sha256, number)

    def check(self, line: BatchLine) -> None:
        """`RequestError` for what can be found out without encoding the prompt."""
        self._check(parse_body(line.url, line.body))

    def prepare(self, line: BatchLine) -> Call:
        """`RequestError` if the line cannot be served. Encodes text: not for an event loop."""
        body = parse_body(line.url, line.body)
        self._check(body)
        call = call_of(body, f"{ID_PREFIXES[line.url]}-{self.key(line.number)}", self._text, self._model)
        requests = tuple(self._offline(request, line, place) for place, request in enumerate(call.requests))
        return for_tenant(replace(call, requests=requests), self._tenant)

    def _check(self, body: Body) -> None:
        check_model(model_of(body), self._served)
        if streams(body):
            raise RequestError(
                "stream is true; a batch answers each line in one piece: leave it out",
                param="stream",
                code="unsupported_parameter",
            )

    def _offline(self, request: Request, line: BatchLine, place: int) -> Request:
        sampling = request.sampling
        if sampling.seed is None:
            sampling = replace(sampling, seed=line_seed(self._seed, line.custom_id, place))
        return replace(request, sampling=sampling, service_class=ServiceClass.BATCH)


def line_seed(seed: int, custom_id: str, place: int) -> int:
    """The seed of prompt `place` of a line that has none: known before the run, different for each line."""
    digest = hashlib.blake2b(f"{seed}:{place}:{custom_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
