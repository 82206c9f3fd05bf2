"""Known fields: what the server does with every field of a body that it knows.

Owns the fields that are read without being needed, and the whole list for each endpoint, which is what strictness and
the reference are made of. Refuses nothing that is known: `refusals` does.
Invariant: a field that changes an answer is honoured or refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from plait.api.bodies import JsonObject
from plait.api.calls import Endpoint
from plait.api.chat import ChatFields
from plait.api.completions import CompletionFields
from plait.api.embeddings import EmbeddingFields
from plait.api.fields import SharedFields
from plait.api.refusals import REFUSALS
from plait.api.responses import AS_IN_CHATS, KEPT, NOT_TOLD, ResponseFields
from plait.api.structured import FORM_FIELDS
from plait.core.errors import RequestError

IGNORED: Mapping[str, str] = {
    "user": "who asks is told by the key",
    "safety_identifier": "as user",
    "session_id": "as user",
    "metadata": "nothing is kept with it",
    "store": "nothing is kept",
    "prompt_cache_key": "prefixes are found by what they are",
    "prompt_cache_retention": "cached prefixes stay as long as there is room",
    "prompt_cache_options": "as prompt_cache_retention",
    "cache_prompt": "prefixes are always cached",
    "verbosity": "a hint that no open model reads",
    "prediction": "a hint about speed",
    "moderation": "nothing is moderated",
    "request_id": "send the header X-Request-Id",
    "timings_per_token": "the figures are at /metrics",
    "return_progress": "the figures are at /metrics",
    "stream_interval": "what a step made is one chunk",
    "include": "nothing of it is there to be included",
    "max_tool_calls": "tools are the client's to run",
}
"""Field -> why an answer is the same without it."""

_MODELS: Mapping[Endpoint, tuple[type[BaseModel], ...]] = {
    Endpoint.CHAT: (SharedFields, ChatFields),
    Endpoint.COMPLETIONS: (SharedFields, CompletionFields),
    Endpoint.EMBEDDINGS: (EmbeddingFields,),
    Endpoint.RESPONSES: (ResponseFields,),
}
_FURTHER: Mapping[Endpoint, tuple[str, ...]] = {
    Endpoint.CHAT: ("messages", "tools", "tool_choice", *FORM_FIELDS),
    Endpoint.COMPLETIONS: ("prompt", *FORM_FIELDS),
    Endpoint.EMBEDDINGS: ("input",),
    Endpoint.RESPONSES: ("input", "tools", "text", *AS_IN_CHATS),
}


def honoured(endpoint: Endpoint) -> list[str]:
    """Fields that an answer depends on, or that are checked."""
    names = [name for model in _MODELS[endpoint] for name in model.model_fields]
    return sorted({*names, *_FURTHER[endpoint]} - set(IGNORED))


def refused(endpoint: Endpoint) -> list[str]:
    """Fields that are known and cannot be honoured."""
    match endpoint:
        case Endpoint.CHAT | Endpoint.COMPLETIONS:
            return sorted({*(refusal.field for refusal in REFUSALS), "modalities"} - set(honoured(endpoint)))
        case Endpoint.RESPONSES:
            further = (refusal.field for refusal in (*REFUSALS, *NOT_TOLD))
            return sorted({*KEPT, *further, "modalities"} - set(honoured(endpoint)))
        case Endpoint.EMBEDDINGS:
            return []


def refuse_unknown(endpoint: Endpoint, body: JsonObject) -> None:
    """`RequestError` for the first field that nobody here knows."""
    known = {*honoured(endpoint), *refused(endpoint), *IGNORED}
    for field in body:
        if field not in known:
            raise RequestError(
                f"{field[:60]} is not known here; leave it out, or start the server without --strict-fields",
                param=field[:60],
                code="unknown_parameter",
            )
