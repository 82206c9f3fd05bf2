"""Embeddings: bodies of /v1/embeddings, and their answers.

Owns the fields of such a body and the two ways in which a vector is written. What is pooled is the engine's business.
Invariant: vectors are in the order of the inputs, each of length 1 unless the body says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from plait.api.answers import Usage
from plait.api.bodies import JsonObject, JsonValue, shown
from plait.api.calls import Call, Endpoint
from plait.api.checking import LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES, Integer, checked
from plait.api.fields import SharedFields, Truncation, generation, output_limit, truncation
from plait.api.model_text import ModelText
from plait.api.prompts import Prompt, encoded_prompt, read_prompts
from plait.api.vectors import VectorForm
from plait.core.client import Delta, ModelInfo
from plait.core.errors import InvariantError, RequestError
from plait.core.ids import RequestId
from plait.core.request import FinishReason, Pooling, Request, Task
from plait.core.sampling import SamplingParams, check_token_ids


class EmbeddingFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Integer | None = None
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Integer | None = None
    truncation_side: Literal["left", "right"] | None = None
    cache_salt: str | None = None
    priority: Integer | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingBody:
    """`inputs` are (path in the body, text or token ids)."""

    inputs: tuple[tuple[str, Prompt], ...]
    shared: SharedFields
    form: VectorForm
    pooling: Pooling
    add_special_tokens: bool
    truncation: Truncation | None

    @property
    def model(self) -> str | None:
        return self.shared.model


def parse_embedding(body: JsonObject) -> EmbeddingBody:
    """Check a body; `RequestError` for the first fault."""
    fields = checked(EmbeddingFields, body)
    if fields.dimensions is not None and fields.dimensions < 1:
        raise RequestError(f"dimensions is {shown(fields.dimensions)}; it must be at least 1", param="dimensions")
    return EmbeddingBody(
        inputs=read_prompts(body.get("input"), "input"),
        shared=SharedFields(model=fields.model, cache_salt=fields.cache_salt, priority=fields.priority),
        form=VectorForm(fields.encoding_format == "base64", fields.dimensions, fields.normalize is not False),
        pooling=Pooling(fields.pooling or "last"),
        add_special_tokens=fields.add_special_tokens is not False,
        truncation=truncation(fields.truncate_prompt_tokens, fields.truncation_side),
    )


def embedding_call(body: EmbeddingBody, call_id: str, text: ModelText, model: ModelInfo) -> Call:
    """Encode the inputs; `RequestError` if one of them is empty or longer than the model's context."""
    width, dimensions = model.embedding_dim, body.form.dimensions
    if dimensions is not None and dimensions > width:
        raise RequestError(
            f"dimensions is {dimensions} but this model's vectors have {width}; ask for {width} or fewer",
            param="dimensions",
        )
    limit = output_limit(1, "max_tokens")
    assert limit is not None
    asked = generation(body.shared, limit, None, SamplingParams())
    requests = []
    for place, (path, prompt) in enumerate(body.inputs):
        tokens = encoded_prompt(path, prompt, text, body.add_special_tokens)
        if body.truncation is not None:
            tokens = list(body.truncation.cut(tokens, model.max_model_tokens))
        check_token_ids(path, tokens, model.vocab_size)
        if len(tokens) > model.max_model_tokens:
            raise RequestError(
                f"{path} has {len(tokens)} tokens but this model's maximum context length is {model.max_model_tokens} "
                "tokens; shorten it, or let it be cut with truncate_prompt_tokens",
                param=path,
                code="context_length_exceeded",
            )
        requests.append(
            Request(
                id=RequestId(f"{call_id}-{place}"),
                prompt=tuple(tokens),
                task=Task.EMBED,
                pooling=body.pooling,
                tenant=asked.tenant,
                priority=asked.priority,
            )
        )
    name = body.model or model.name
    return Call(Endpoint.EMBEDDINGS, call_id, name, model.fingerprint, asked, tuple(requests), vectors=body.form)


class EmbeddingAnswer:
    """The answer to one call: as `Answer`, of vectors."""

    def __init__(self, call: Call, form: VectorForm) -> None:
        self._call = call
        self._form = form
        self._last: list[Delta | None] = [None] * len(call.requests)

    def add(self, prompt: int, delta: Delta) -> None:
        """An embedding comes in one piece."""
        if self._last[prompt] is not None:
            raise InvariantError(f"a delta came after input {prompt} had its embedding")
        self._last[prompt] = delta

    @property
    def is_complete(self) -> bool:
        return all(delta is not None for delta in self._last)

    @property
    def is_aborted(self) -> bool:
        return any(delta.finish_reason is FinishReason.ABORT for delta in self._deltas())

    @property
    def failure(self) -> str | None:
        failed = [delta for delta in self._deltas() if delta.finish_reason is FinishReason.ERROR]
        return (failed[0].error or "no reason given") if failed else None

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(len(request.prompt) for request in self._call.requests),
            cached_tokens=sum(delta.num_cached for delta in self._deltas()),
        )

    def body(self) -> JsonObject:
        """The response object, once complete."""
        deltas = self._deltas()
        pooled = [delta.pooled for delta in deltas if delta.pooled is not None]
        if len(pooled) != len(self._call.requests):
            raise InvariantError(f"the answer to {self._call.id} was read before every input had its embedding")
        data: list[JsonValue] = [
            {"object": "embedding", "index": index, "embedding": self._form.told(vector)}
            for index, vector in enumerate(pooled)
        ]
        usage = self.usage()
        return {
            "object": "list",
            "id": self._call.id,
            "model": self._call.model,
            "data": data,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "total_tokens": usage.prompt_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            },
        }

    def _deltas(self) -> list[Delta]:
        return [delta for delta in self._last if delta is not None]
