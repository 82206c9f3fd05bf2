"""Conversations: chats as prompts.

Owns the difference between one conversation and many, and the template that renders them. What a template reads is the
text room's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from plait.api.continuing import up_to_the_end_of
from plait.api.model_text import ModelText
from plait.core.errors import ModelError, RequestError
from plait.llm.errors import InputError, input_error
from plait.llm.prompts import Prompt
from plait.text.chat import ChatTemplate
from plait.text.prompt import encode_chat

Message: TypeAlias = Mapping[str, object]
Conversation: TypeAlias = Sequence[Message]

_RESERVED = ("messages", "add_generation_prompt", "tools", "bos_token", "eos_token")


@dataclass(frozen=True, slots=True)
class Rendering:
    """How conversations become prompts. `chat_template` None: the model's own."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The last message is the beginning of the answer: the prompt ends where it does."""
    chat_template: str | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    variables: Mapping[str, object] | None = None


def read_conversations(
    messages: Conversation | Sequence[Conversation], text: ModelText, how: Rendering
) -> list[Prompt]:
    """One conversation, or many: a list of dicts is one."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise InputError(
            f"messages is of type {type(messages).__name__}; give a list such as "
            '[{"role": "user", "content": "Hello"}], or a list of such lists'
        )
    for name in _RESERVED:
        if name in (how.variables or {}):
            raise InputError(f"chat_template_kwargs holds {name!r}, which has an argument of its own; leave it out")
    if how.continue_final_message and how.add_generation_prompt:
        raise InputError("continue_final_message and add_generation_prompt are both True; set the other to False")
    template = _template(text, how.chat_template)
    is_one = not messages or isinstance(messages[0], Mapping)
    several: Sequence[object] = [messages] if is_one else messages
    return [
        _prompt(one, text, template, how, "the conversation" if is_one else f"conversation {place}")
        for place, one in enumerate(several)
    ]


def _template(text: ModelText, source: str | None) -> ChatTemplate | None:
    if source is None:
        if text.template is None:
            raise InputError("this model has no chat template; give one with chat_template, or use generate")
        return text.template
    try:
        return ChatTemplate(source, text.tokenizer.named_tokens, datetime.now)
    except ModelError as error:
        raise InputError(str(error)) from None


def _prompt(conversation: object, text: ModelText, template: ChatTemplate | None, how: Rendering, where: str) -> Prompt:
    try:
        tokens = encode_chat(
            text.tokenizer,
            template,
            conversation,
            add_generation_prompt=how.add_generation_prompt,
            tools=how.tools,
            variables=how.variables,
        )
    except RequestError as error:
        raise input_error(error, where) from None
    if not tokens:
        raise InputError(f"{where} is rendered to nothing by the chat template; give another one")
    if how.continue_final_message:
        last = conversation[-1] if isinstance(conversation, Sequence) else None
        try:
            tokens = up_to_the_end_of(
                last.get("content") if isinstance(last, Mapping) else None, tokens, text.tokenizer
            )
        except RequestError as error:
            raise input_error(error, where) from None
    return Prompt(text.tokenizer.decode(tokens, skip_special=False), tuple(tokens))
