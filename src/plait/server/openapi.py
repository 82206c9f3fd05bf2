"""OpenAPI: the description of every route, for clients, generators and fuzzers.

Owns what the field models cannot say by themselves: prompts, messages, answers and errors. Truthful in both directions:
what a schema allows is answered or refused with an error of this shape, and every status that a route gives is listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Endpoint
from plait.api.chat import ChatFields
from plait.api.completions import CompletionFields
from plait.api.embeddings import EmbeddingFields
from plait.api.fields import PRIORITY_LIMIT, SharedFields
from plait.api.prompts import MAX_PROMPTS
from plait.api.responses import NOT_TOLD, ResponseFields
from plait.core.request import MAX_CHOICES
from plait.core.sampling import MAX_LOGPROBS
from plait.server.replies import Json
from plait.server.serving import Serving
from plait.server.tokens import DetokenizeFields, TokenizeFields

_STOP: JsonObject = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}],
    "description": "Texts at which an answer ends; they are left out of it.",
}
_TEXT_PART: JsonObject = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_MESSAGES: JsonObject = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _TEXT_PART}]},
            "name": {"type": ["string", "null"]},
        },
        "required": ["role", "content"],
    },
}
_TOKENS: JsonObject = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT: JsonObject = {"type": "string", "minLength": 1}
_PROMPT: JsonObject = {
    "anyOf": [
        _TEXT,
        _TOKENS,
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"anyOf": [_TEXT, _TOKENS]}},
    ]
}
_ITEM: JsonObject = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "type": {"const": "message"},
                "role": {"enum": ["system", "developer", "user", "assistant"]},
                "content": {"type": "string"},
            },
            "required": ["role", "content"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "function_call_output"},
                "call_id": {"type": "string"},
                "output": {"type": "string"},
            },
            "required": ["type", "call_id", "output"],
        },
    ]
}
_INPUT: JsonObject = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _ITEM}]}
_BATCH: JsonObject = {
    "type": "object",
    "properties": {
        "input_file_id": {"type": "string"},
        "endpoint": {"enum": list[JsonValue](Endpoint)},
        "completion_window": {"type": "string", "description": "From 1m to 7d, such as 24h."},
        "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string", "maxLength": 512}},
    },
    "required": ["input_file_id", "endpoint", "completion_window"],
}
_UPLOAD: JsonObject = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": ["batch", "user_data", "evals", "assistants", "fine-tune", "vision"]},
    },
    "required": ["file", "purpose"],
}
_ID: JsonObject = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_PAGE: list[JsonValue] = [
    {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}},
    {"name": "after", "in": "query", "schema": {"type": "string"}},
]
_ERROR: JsonObject = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_OBJECT: JsonObject = {"type": "object"}
_PENALTY: JsonObject = {"minimum": -2, "maximum": 2}
_COUNT: JsonObject = {"minimum": 0, "maximum": MAX_LOGPROBS}
# Ranges are core's to check, so the field models do not say them.
_RANGES: Mapping[str, JsonObject] = {
    "temperature": {"minimum": 0, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "min_p": {"minimum": 0, "maximum": 1},
    "top_k": {"minimum": -1},
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "repetition_penalty": {"minimum": 1e-6, "maximum": 1e6},
    "seed": {"minimum": -(2**63), "maximum": 2**63 - 1},
    "priority": {"minimum": -PRIORITY_LIMIT, "maximum": PRIORITY_LIMIT - 1},
    "n": {"minimum": 1, "maximum": MAX_CHOICES},
    "logprobs": _COUNT,
    "top_logprobs": _COUNT,
    "prompt_logprobs": _COUNT,
    "min_tokens": {"minimum": 0},
    "max_completion_tokens": {"minimum": 1},
    "max_output_tokens": {"minimum": 1},
    "dimensions": {"minimum": 1},
}
_FAULTS = {
    400: "A field is wrong; `param` names it.",
    401: "No valid API key was sent.",
    404: "There is no such model, or nothing at this path.",
    405: "The path does not take this method.",
    413: "The body is too large.",
    415: "The body is said to be no JSON.",
    429: "More answers are under way than are taken on; `Retry-After` says when to come back.",
    503: "The server is shutting down or its engine has stopped.",
}


def description(version: str, *, with_keys: bool) -> JsonObject:
    """The whole document."""
    posts = {
        "/v1/chat/completions": ("A chat.", _body([SharedFields, ChatFields], {"messages": _MESSAGES, "stop": _STOP})),
        "/v1/completions": (
            "A continuation of one or several texts.",
            _body([SharedFields, CompletionFields], {"prompt": _PROMPT, "stop": _STOP}),
        ),
        "/v1/embeddings": (
            "A vector for each of one or several texts.",
            _body([EmbeddingFields], {"input": _PROMPT}),
        ),
        "/v1/responses": ("A response, stateless.", _response_body()),
        "/tokenize": ("Tokens of a text or a conversation.", _body([TokenizeFields], {"messages": _MESSAGES}, ())),
        "/detokenize": ("Text of tokens.", _body([DetokenizeFields], {}, ("tokens",))),
    }
    gets = {
        "/v1/models": "The models that are served.",
        "/tokenizer_info": "Named tokens, size of the vocabulary and chat template of the model.",
        "/health": "Whether the engine serves.",
        "/ready": "Whether work is taken.",
        "/live": "Whether the process runs.",
        "/load": "How much is under way.",
        "/version": "Which version this is.",
        "/status.json": "What the server does and how its memory is used; /status shows it.",
    }
    paths: JsonObject = {path: {"post": _post(text, schema)} for path, (text, schema) in posts.items()}
    paths |= {path: {"get": _get(text)} for path, text in gets.items()}
    paths["/v1/models/{name}"] = {
        "get": {
            **_get("One model."),
            "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
        }
    }
    paths |= _batch_paths()
    document: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": "Plait", "version": version, "description": "Language models behind the OpenAI API."},
        "paths": paths,
    }
    if with_keys:
        document["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"key": []}]
    return document


class OpenApi:
    """GET /openapi.json."""

    def __init__(self, document: JsonObject) -> None:
        self._document = document

    async def __call__(self, serving: Serving, request: Request) -> Response:
        return Json(self._document)


class DocsPage:
    """GET /docs: the same for people, without anything from elsewhere."""

    def __init__(self, document: JsonObject) -> None:
        self._page = _page(document)

    async def __call__(self, serving: Serving, request: Request) -> Response:
        return Response(self._page, media_type="text/html; charset=utf-8")


def _body(
    models: Sequence[type[BaseModel]], further: Mapping[str, JsonValue], required: Sequence[str] | None = None
) -> JsonObject:
    properties: JsonObject = {}
    for model in models:
        schema = model.model_json_schema()
        definitions = schema.get("$defs", {})
        for name, field in schema.get("properties", {}).items():
            properties[name] = _ranged(_inlined(field, definitions), _RANGES.get(name))
    properties |= further
    wanted = [name for name in further if name not in ("stop",)] if required is None else list(required)
    return {"type": "object", "properties": properties, "required": list[JsonValue](wanted)}


def _response_body() -> JsonObject:
    body = _body([SharedFields, ResponseFields], {"input": _INPUT, "stop": _STOP})
    refused = {refusal.field for refusal in NOT_TOLD}
    properties = body["properties"]
    assert isinstance(properties, dict)
    return {**body, "properties": {name: field for name, field in properties.items() if name not in refused}}


def _ranged(field: JsonValue, limits: JsonObject | None) -> JsonValue:
    """The schema of an optional number, with the range that it must lie in."""
    kinds = field.get("anyOf") if isinstance(field, dict) else None
    if limits is None or not isinstance(field, dict) or not isinstance(kinds, list):
        return field
    numbers = ("integer", "number")
    ranged = [{**kind, **limits} if isinstance(kind, dict) and kind.get("type") in numbers else kind for kind in kinds]
    return {**field, "anyOf": ranged}


def _inlined(value: JsonValue, definitions: Mapping[str, JsonValue]) -> JsonValue:
    """References to definitions replaced by them, so that the document needs none."""
    if isinstance(value, list):
        return [_inlined(one, definitions) for one in value]
    if not isinstance(value, dict):
        return value
    name = value.get("$ref")
    if isinstance(name, str):
        return _inlined(definitions[name.rpartition("/")[2]], definitions)
    return {key: _inlined(one, definitions) for key, one in value.items() if key != "title"}


def _batch_paths() -> JsonObject:
    upload = _post("Upload a file.", _UPLOAD)
    upload["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD}}}
    one: list[JsonValue] = [_ID]
    return {
        "/v1/files": {"get": _get("Files, newest first.") | {"parameters": _page_of(10_000)}, "post": upload},
        "/v1/files/{id}": {
            "get": _get("One file.") | {"parameters": one},
            "delete": _get("Delete a file.") | {"parameters": one},
        },
        "/v1/files/{id}/content": {"get": _get("What a file holds.", "application/octet-stream") | {"parameters": one}},
        "/v1/batches": {
            "get": _get("Batches, newest first.") | {"parameters": _page_of(100)},
            "post": _post("Run the lines of a file.", _BATCH),
        },
        "/v1/batches/{id}": {"get": _get("One batch.") | {"parameters": one}},
        "/v1/batches/{id}/cancel": {"post": _get("Finish no further line.") | {"parameters": one}},
    }


def _page_of(most: int) -> list[JsonValue]:
    limit: JsonObject = {"type": "integer", "minimum": 1, "maximum": most}
    return [{"name": "limit", "in": "query", "schema": limit}, *_PAGE]


def _post(text: str, schema: JsonObject) -> JsonObject:
    return {
        "summary": text,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {
                "description": "The answer; with `stream`, server-sent events.",
                "content": {"application/json": {"schema": _OBJECT}, "text/event-stream": {"schema": {}}},
            },
            **_faults(_FAULTS),
        },
    }


def _get(text: str, kind: str = "application/json") -> JsonObject:
    schema = _OBJECT if kind == "application/json" else {}
    return {
        "summary": text,
        "responses": {
            "200": {"description": text, "content": {kind: {"schema": schema}}},
            **_faults({status: _FAULTS[status] for status in (400, 401, 404, 405, 503)}),
        },
    }


def _faults(statuses: Mapping[int, str]) -> JsonObject:
    content: JsonObject = {"application/json": {"schema": _ERROR}}
    return {str(status): {"description": text, "content": content} for status, text in statuses.items()}


def _page(document: JsonObject) -> str:
    paths = document["paths"]
    assert isinstance(paths, dict)
    rows = []
    for path, methods in paths.items():
        assert isinstance(methods, dict)
        for method, route in methods.items():
            assert isinstance(route, dict)
            rows.append(f"<tr><td>{method.upper()}<td><code>{path}</code><td>{route['summary']}")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Plait</title>"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "td{padding:.2em 1em .2em 0;vertical-align:top}</style>"
        "<h1>Plait</h1><p>The OpenAI API. The fields of every route are in <a href=openapi.json>openapi.json</a>."
        f"<table>{''.join(rows)}</table></html>"
    )
