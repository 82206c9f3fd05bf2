"""Responses: bodies of /v1/responses, as far as they need no memory of earlier ones.

Owns the translation of input items into a conversation, and what of a body is told back in every answer. Whatever asks
for something that the server would have to keep is refused by name; tools that others run are skipped.
Invariant: a `ResponseBody` becomes the same call as the chat body that says the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel

from plait.api.bodies import JsonObject, JsonValue, shown
from plait.api.calls import Call, Endpoint
from plait.api.chat import ChatBody, chat_call, parse_chat
from plait.api.checking import LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES, Integer, checked
from plait.api.fields import ServiceTier, SharedFields, StreamOptions, told_tier
from plait.api.model_text import ModelText
from plait.api.refusals import Refusal, refuse_unsupported
from plait.api.structured import FORM_FIELDS
from plait.core.client import ModelInfo
from plait.core.errors import RequestError

_FOREIGN_PARTS = ("input_image", "input_file", "input_audio")
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
KEPT = {
    "background": "nothing runs after the connection has ended; leave it out",
    "conversation": "conversations are not kept; send the items in input",
    "prompt": "prompts are not kept; send the text in input",
    "context_management": "a conversation is never shortened silently; leave it out",
}

NOT_TOLD = (
    Refusal("n", "a response is one answer; send several requests, or use /v1/chat/completions", (1, 1.0)),
    Refusal("best_of", "as n", (1, 1.0)),
    Refusal("prompt_logprobs", "a response has no place for them; use /v1/chat/completions"),
    Refusal("return_token_ids", "a response has no place for them; use /v1/chat/completions", (False,)),
    Refusal("return_tokens_as_token_ids", "a response has no place for them; use /v1/chat/completions", (False,)),
)
"""What a chat can say and a response cannot."""
AS_IN_CHATS = (
    *sorted(set(SharedFields.model_fields) - {"stream", "stream_options"} - {refusal.field for refusal in NOT_TOLD}),
    *("tool_choice", "parallel_tool_calls", "chat_template_kwargs"),
    # A response's own form is text.format.
    *(field for field in FORM_FIELDS if field != "response_format"),
)
"""Fields that mean the same here, so that what a sampler is told never depends on the endpoint."""


class ReasoningFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    effort: str | None = None


class ResponseFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Integer | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Integer | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    service_tier: ServiceTier | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    max_tool_calls: Integer | None = None
    metadata: dict[str, str] | None = None
    reasoning: ReasoningFields | None = None


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """`told`: the fields of the response object that only repeat what was asked."""

    chat: ChatBody
    told: JsonObject
    paths: tuple[str, ...]
    """Where each message of the chat stands in the body."""

    def call(self, call_id: str, text: ModelText, model: ModelInfo) -> Call:
        """As a chat's, with faults in the words of this endpoint."""
        try:
            call = chat_call(self.chat, call_id, text, model)
        except RequestError as error:
            raise _with_their_names(error, self.paths) from error
        return replace(call, endpoint=Endpoint.RESPONSES, told=self.told)


def parse_response(body: JsonObject) -> ResponseBody:
    """Check a body; `RequestError` for the first fault."""
    fields = checked(ResponseFields, body)
    _refuse_memory(body, fields)
    refuse_unsupported(body, NOT_TOLD)
    conversation = _conversation(body.get("input"))
    if fields.instructions:
        conversation.insert(0, ("instructions", {"role": "system", "content": fields.instructions}))
    paths = tuple(path for path, _ in conversation)
    messages: list[JsonValue] = [message for _, message in conversation]
    chat: JsonObject = {"messages": messages, "stream": bool(fields.stream)}
    chat |= {field: body[field] for field in AS_IN_CHATS if body.get(field) is not None}
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if fields.top_logprobs:
        chat |= {"logprobs": True, "top_logprobs": fields.top_logprobs}
    if fields.reasoning is not None and fields.reasoning.effort is not None:
        chat["reasoning_effort"] = fields.reasoning.effort
    chat |= _tools(body.get("tools")) | _format(body.get("text"))
    try:
        return ResponseBody(parse_chat(chat), _told(body, fields), paths)
    except RequestError as error:
        raise _with_their_names(error, paths) from error


def _refuse_memory(body: JsonObject, fields: ResponseFields) -> None:
    if fields.previous_response_id is not None:
        raise RequestError(
            f"previous_response_id is {shown(fields.previous_response_id)}, but responses are not kept here; "
            "send the whole conversation in input",
            param="previous_response_id",
            code="not_found",
            status=404,
        )
    for field, reason in KEPT.items():
        if body.get(field):
            raise RequestError(f"{field} is {shown(body[field])}; {reason}", param=field, code="unsupported_parameter")


def _conversation(given: JsonValue) -> list[tuple[str, JsonObject]]:
    """Messages, and where each stands in the body."""
    if isinstance(given, str):
        return [("input", {"role": "user", "content": given})]
    if not isinstance(given, list):
        raise RequestError(f"input is {shown(given)}; it must be text or a list of items", param="input")
    messages: list[tuple[str, JsonObject]] = []
    for place, item in enumerate(given):
        message = _message(item, f"input.{place}")
        if message is None or _joins(messages, message):
            continue
        messages.append((f"input.{place}", message))
    if not messages:
        raise RequestError("input holds no message; send at least one", param="input")
    return messages


def _joins(messages: Sequence[tuple[str, JsonObject]], message: JsonObject) -> bool:
    """Whether a call was added to the message before it: what a model said at once is one message of a chat."""
    calls, last = message.get("tool_calls"), messages[-1][1] if messages else {}
    if calls is None or last.get("role") != "assistant":
        return False
    before = last.get("tool_calls") or []
    assert isinstance(before, list)
    assert isinstance(calls, list)
    last["tool_calls"] = [*before, *calls]
    return True


def _message(item: JsonValue, path: str) -> JsonObject | None:
    """An item as a message; None for one that only models of others can read."""
    if not isinstance(item, dict):
        raise RequestError(f"{path} is {shown(item)}; it must be an object", param=path)
    kind = item.get("type", "message")
    if kind in ("reasoning", "item_reference"):
        return None
    if kind == "function_call":
        call: JsonObject = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        if not isinstance(item.get("call_id"), str):
            raise RequestError(
                f"{path}.call_id is {shown(item.get('call_id'))}; it must be that of the call", param=f"{path}.call_id"
            )
        return {
            "role": "tool",
            "tool_call_id": item.get("call_id"),
            "content": _content(item.get("output"), f"{path}.output"),
        }
    if kind != "message":
        raise RequestError(
            f"{path}.type is {shown(kind)}; only messages and function calls are read here: leave it out",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    return {"role": item.get("role"), "content": _content(item.get("content"), f"{path}.content")}


def _content(content: JsonValue, path: str) -> JsonValue:
    if not isinstance(content, list):
        return content
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _FOREIGN_PARTS:
            raise RequestError(
                f"{path}.{place} is {shown(kind)}; this model reads text only",
                param=f"{path}.{place}",
                code="unsupported_parameter",
            )
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise RequestError(
                f'{path}.{place} is {shown(part)}; it must be an object such as {{"type": "input_text", "text": "Hi"}}',
                param=f"{path}.{place}",
            )
        texts.append(text)
    return "".join(texts)


def _tools(tools: JsonValue) -> JsonObject:
    """Functions in the form of chats. Tools that a provider would run (search, files, images) are not for us."""
    if tools is None:
        return {}
    if not isinstance(tools, list):
        raise RequestError(f"tools is {shown(tools)}; it must be a list", param="tools")
    functions: list[JsonValue] = []
    for tool in tools:
        if isinstance(tool, dict) and tool.get("type") == "function":
            inner = {key: value for key, value in tool.items() if key != "type"}
            functions.append({"type": "function", "function": inner})
    return {"tools": functions} if functions else {}


def _format(text: JsonValue) -> JsonObject:
    if text is None:
        return {}
    wanted = text.get("format") if isinstance(text, dict) else text
    if not isinstance(text, dict) or not isinstance(wanted, dict | None):
        raise RequestError(
            f'text is {shown(text)}; it must be an object such as {{"format": {{"type": "text"}}}}', param="text"
        )
    if wanted is None or wanted.get("type") == "text":
        return {}
    if wanted.get("type") == "json_schema":
        schema = {key: value for key, value in wanted.items() if key != "type"}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": wanted}


_THEIR_NAMES = {"max_completion_tokens": "max_output_tokens", "response_format": "text.format"}
_MESSAGE = re.compile(r"\bmessages(?:\.(\d+))?\b")


def _with_their_names(error: RequestError, paths: Sequence[str]) -> RequestError:
    """The fault in the words of this endpoint."""

    def place(found: re.Match[str]) -> str:
        if found[1] is None:
            return "input"
        # What the client wrote is quoted in messages, and may look like a path.
        return paths[int(found[1])] if len(found[1]) < 9 and int(found[1]) < len(paths) else found[0]

    def translated(text: str) -> str:
        for ours, theirs in _THEIR_NAMES.items():
            text = text.replace(ours, theirs)
        return _MESSAGE.sub(place, text)

    param = None if error.param is None else translated(error.param)
    return RequestError(translated(error.message), param=param, code=error.code, status=error.status, kind=error.kind)


def _told(body: JsonObject, fields: ResponseFields) -> JsonObject:
    text = body.get("text")
    told: JsonObject = {
        "frequency_penalty": body.get("frequency_penalty") or 0.0,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": dict(fields.metadata or {}),
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "presence_penalty": body.get("presence_penalty") or 0.0,
        "previous_response_id": None,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {"effort": None if fields.reasoning is None else fields.reasoning.effort, "summary": None},
        "safety_identifier": fields.safety_identifier,
        "service_tier": told_tier(fields.service_tier) or "default",
        "store": False,
        "temperature": 1.0 if fields.temperature is None else fields.temperature,
        "text": text if isinstance(text, dict) and text.get("format") else {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": _told_tools(body.get("tools")),
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": 1.0 if fields.top_p is None else fields.top_p,
        "truncation": "disabled",
    }
    # In OpenAI's description this is a text where it is there, and never null.
    return told if fields.user is None else {**told, "user": fields.user}


def _told_tools(tools: JsonValue) -> list[JsonValue]:
    """The tools as they were sent, functions with every field that OpenAI's have."""
    given = tools if isinstance(tools, list) else []
    empty: JsonObject = {"description": None, "parameters": None, "strict": None}
    return [{**empty, **tool} if isinstance(tool, dict) and tool.get("type") == "function" else tool for tool in given]
