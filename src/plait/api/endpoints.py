"""Endpoints: from a body to its call and from its deltas to its answer, whichever route it came by.

Owns the choice of the parts that know a route. Everything that generates goes through here: the server's routes and the
lines of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from plait.api.answers import Answer
from plait.api.bodies import JsonObject
from plait.api.calls import Call, Endpoint
from plait.api.chat import ChatBody, chat_call, parse_chat
from plait.api.completions import CompletionBody, completion_call, parse_completion
from plait.api.embeddings import EmbeddingAnswer, EmbeddingBody, embedding_call, parse_embedding
from plait.api.fields import Generation
from plait.api.model_text import ModelText
from plait.api.response_events import ResponseAnswer
from plait.api.responses import ResponseBody, parse_response
from plait.core.client import ModelInfo
from plait.text.tokenizer import Tokenizer

Body: TypeAlias = ChatBody | CompletionBody | EmbeddingBody | ResponseBody
AnyAnswer: TypeAlias = Answer | EmbeddingAnswer | ResponseAnswer

ID_PREFIXES: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "chatcmpl",
    Endpoint.COMPLETIONS: "cmpl",
    Endpoint.EMBEDDINGS: "embd",
    Endpoint.RESPONSES: "resp",
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
        case Endpoint.RESPONSES:
            return parse_response(body)


def model_of(body: Body) -> str | None:
    """The model that was asked for."""
    if isinstance(body, EmbeddingBody):
        return body.model
    return _generation(body).model


def streams(body: Body) -> bool:
    """Whether the answer is to come in pieces."""
    return not isinstance(body, EmbeddingBody) and _generation(body).stream


def call_of(body: Body, call_id: str, text: ModelText, model: ModelInfo) -> Call:
    """Render and encode; not for an event loop. `RequestError` for what the model cannot do."""
    match body:
        case ChatBody():
            return chat_call(body, call_id, text, model)
        case CompletionBody():
            return completion_call(body, call_id, text, model)
        case EmbeddingBody():
            return embedding_call(body, call_id, text, model)
        case ResponseBody():
            # Ids of a response's parts are made from its own, by this mark.
            return body.call(call_id.replace("-", "_"), text, model)


def answer_to(call: Call, tokenizer: Tokenizer, unix_now: Callable[[], int]) -> AnyAnswer:
    """Still empty. `unix_now` gives Unix time in whole seconds."""
    if call.vectors is not None:
        return EmbeddingAnswer(call, call.vectors)
    if call.endpoint is Endpoint.RESPONSES:
        return ResponseAnswer(call, tokenizer, unix_now)
    return Answer(call, tokenizer, unix_now())


def _generation(body: ChatBody | CompletionBody | ResponseBody) -> Generation:
    return body.chat.generation if isinstance(body, ResponseBody) else body.generation
