"""Chat: bodies of /v1/chat/completions.

Owns the fields that only chats have. The conversation itself is in `messages`, the fields shared with text completions
in `fields`.
Invariant: a `ChatBody` is complete: every field of the body was honoured, refused or is known to be ignorable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Call, Endpoint, make_call, truncated
from plait.api.checking import LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES, Integer, checked
from plait.api.fields import Generation, OutputLimit, SharedFields, generation, num_alternatives, output_limit
from plait.api.messages import parse_messages
from plait.api.model_text import ModelText
from plait.api.refusals import refuse_unsupported
from plait.api.structured import grammar_of
from plait.api.tools import Tools, parse_tools
from plait.core.client import ModelInfo
from plait.core.errors import RequestError
from plait.core.sampling import SamplingParams
from plait.text.tool_calls import ToolFormat

# Ours to set when a prompt is rendered; from a body they would silently change what other fields say.
_RESERVED_VARIABLES = ("messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token")


class ChatFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    max_completion_tokens: Integer | None = None
    max_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, object]] | None = None
    echo: bool | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatBody:
    """`variables` are handed to the chat template as they are."""

    messages: tuple[JsonObject, ...]
    generation: Generation
    add_generation_prompt: bool
    continues: bool
    """The answer goes on with the last message."""
    variables: Mapping[str, JsonValue]
    tools: Tools | None = None
    only_first_call: bool = False


def parse_chat(body: JsonObject, defaults: SamplingParams | None = None) -> ChatBody:
    """Check a body; `RequestError` for the first fault. `defaults` hold for sampling fields that it leaves out."""
    shared = checked(SharedFields, body)
    fields = checked(ChatFields, body)
    refuse_unsupported(body)
    if fields.add_special_tokens:
        raise RequestError(
            "add_special_tokens is true; the chat template already writes them: leave it out",
            param="add_special_tokens",
        )
    if fields.echo:
        raise RequestError(
            "echo is true; an answer never repeats the conversation: leave it out, or score text with /v1/completions",
            param="echo",
            code="unsupported_parameter",
        )
    asked = generation(shared, _limit(fields), _logprobs(fields), defaults or SamplingParams())
    tools, grammar = parse_tools(body), grammar_of(body)
    if tools is not None and tools.forced is not None and grammar is not None:
        raise RequestError(
            f"{grammar.param} says what form the answer must have, and tool_choice that it must be a call; "
            "leave one out",
            param="tool_choice",
        )
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt are both true; leave one out",
            param="add_generation_prompt",
        )
    return ChatBody(
        messages=parse_messages(body.get("messages")),
        generation=replace(asked, grammar=grammar),
        add_generation_prompt=fields.add_generation_prompt is not False and not continues,
        continues=continues,
        variables=_variables(body, fields.reasoning_effort),
        tools=tools,
        only_first_call=fields.parallel_tool_calls is False,
    )


def chat_prompt(body: ChatBody, text: ModelText) -> list[int]:
    """The conversation as the model reads it; `RequestError` if its template refuses it or has no place for tools."""
    if body.tools is not None:
        _tool_format(text)
    return text.encode_chat(
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        variables=body.variables,
        tools=None if body.tools is None else body.tools.shown,
        continues=body.continues,
    )


def chat_call(body: ChatBody, call_id: str, text: ModelText, model: ModelInfo) -> Call:
    """Render and encode the conversation; `RequestError` if it does not fit the model or its template refuses it."""
    tools, asked = body.tools, body.generation
    tokens = list(truncated(chat_prompt(body, text), asked, model))
    if tools is None:
        constraint = text.constraint(asked.grammar)
        return make_call(Endpoint.CHAT, call_id, asked, [("messages", tokens)], model, constraint)
    form = _tool_format(text)
    constraint = text.constraint(tools.grammar(form) or asked.grammar)
    # The marks around calls are control tokens of some models.
    seen = replace(asked, sampling=replace(asked.sampling, skip_special_tokens=False))
    call = make_call(Endpoint.CHAT, call_id, seen, [("messages", tokens)], model, constraint)
    return replace(call, tool_format=form, only_first_call=body.only_first_call)


def _tool_format(text: ModelText) -> ToolFormat:
    form = text.tool_format
    if form is None:
        raise RequestError(
            "tools are sent, but this model's chat template knows of none; leave them out, describe them in a message, "
            "or give a template that has them with --chat-template",
            param="tools",
            code="unsupported_parameter",
        )
    return form


def _limit(fields: ChatFields) -> OutputLimit:
    """The newer field wins, whatever the older one says."""
    limit = output_limit(fields.max_completion_tokens, "max_completion_tokens")
    return limit or output_limit(fields.max_tokens, "max_tokens") or OutputLimit(None, None)


def _logprobs(fields: ChatFields) -> int | None:
    if fields.top_logprobs is not None:
        wanted = num_alternatives(fields.top_logprobs, "top_logprobs")
        # Zero asks for nothing, so it is fine beside logprobs false.
        if wanted and not fields.logprobs:
            raise RequestError(f"top_logprobs is {wanted} but logprobs is not true; set it", param="top_logprobs")
    return (fields.top_logprobs or 0) if fields.logprobs else None


def _variables(body: JsonObject, reasoning_effort: str | None) -> Mapping[str, JsonValue]:
    given = body.get("chat_template_kwargs")
    variables: JsonObject = dict(given) if isinstance(given, dict) else {}
    for name in _RESERVED_VARIABLES:
        if name in variables:
            path = f"chat_template_kwargs.{name}"
            raise RequestError(f"{path} is set; {name} is not the body's to choose: leave it out", param=path)
    if reasoning_effort is not None:
        variables.setdefault("reasoning_effort", reasoning_effort)
    if documents := body.get("documents"):
        variables["documents"] = documents
    return variables
