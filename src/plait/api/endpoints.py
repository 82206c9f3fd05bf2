"""Endpoints: from a body to its call and from its deltas to its answer, whichever route it came by.

Owns the choice of the parts that know a route. Everything that generates goes through here: the server's routes and the
lines of batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from plait.api.answers import Answer
from plait.api.bodies import JsonObject
from plait.api.calls import Call, Endpoint
from plait.api.chat import ChatBody, chat_call, parse_chat
from plait.api.completions import CompletionBody, completion_call, parse_completion
from plait.api.embeddings import EmbeddingAnswer, EmbeddingBody, embedding_call, parse_embedding
from plait.api.model_text import ModelText
from plait.core.client import ModelInfo
from plait.text.tokenizer import Tokenizer

Body: TypeAlias = ChatBody | CompletionBody | EmbeddingBody

ID_PREFIXES: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "chatcmpl",
    Endpoint.COMPLETIONS: "cmpl",
    Endpoint.EMBEDDINGS: "embd",
}


def parse_body(endpoint: Endpoint, body: JsonObject) -> Body:
    """`RequestError` for the first fault."""
    match endpoint:
        case Endpoint.CHAT:
            return parse_chat(body)
        case Endpoint.COMPLETIONS:
            return parse_completion(body)
        case Endpoint.EMBEDDINGS:
            return parse_embedding(body)


def model_of(body: Body) -> str | None:
    """The model that was asked for."""
    return body.model if isinstance(body, EmbeddingBody) else body.generation.model


def streams(body: Body) -> bool:
    """Whether the answer is to come in pieces."""
    return not isinstance(body, EmbeddingBody) and body.generation.stream


def call_of(body: Body, call_id: str, text: ModelText, model: ModelInfo) -> Call:
    """Render and encode; not for an event loop. `RequestError` for what the model cannot do."""
    match body:
        case ChatBody():
            return chat_call(body, call_id, text, model)
        case CompletionBody():
            return completion_call(body, call_id, text, model)
        case EmbeddingBody():
            return embedding_call(body, call_id, text, model)


def answer_to(call: Call, tokenizer: Tokenizer, created: int) -> Answer | EmbeddingAnswer:
    """Still empty. `created` is Unix time in whole seconds."""
    return Answer(call, tokenizer, created) if call.vectors is None else EmbeddingAnswer(call, call.vectors)
