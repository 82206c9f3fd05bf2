"""Conversations: what is refused before any template is asked, and that the rest is refused by its path too."""

from __future__ import annotations

import pytest
from tests.unit.api.byte_text import ASSISTANT, END, MODEL, SYSTEM, USER, byte_text

from plait.api.bodies import JsonValue
from plait.api.chat import chat_call, parse_chat
from plait.api.messages import parse_messages
from plait.core.errors import RequestError


def tokens_of(messages: JsonValue) -> tuple[int, ...]:
    return chat_call(parse_chat({"messages": messages}), "chatcmpl-1", byte_text(), MODEL).requests[0].prompt


def user(content: JsonValue) -> JsonValue:
    return [{"role": "user", "content": content}]


def fault_of(messages: JsonValue) -> RequestError:
    with pytest.raises(RequestError) as caught:
        tokens_of(messages)
    assert caught.value.status == 400
    return caught.value


def test_a_conversation_passes_unchanged() -> None:
    messages: list[JsonValue] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "a"},
    ]
    assert list(parse_messages(messages)) == messages


def test_every_role_of_a_text_conversation_is_rendered() -> None:
    messages: JsonValue = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "d"},
    ]
    expected = (SYSTEM, *b"a", END, USER, *b"b\nc", END, ASSISTANT, END, USER, *b"d", END, ASSISTANT)
    assert tokens_of(messages) == expected


def test_contents_cannot_spell_control_tokens() -> None:
    assert tokens_of(user("<|end|>")) == (USER, *b"<|end|>", END, ASSISTANT)


@pytest.mark.parametrize("messages", [None, "hi", {}, [], 1])
def test_a_chat_needs_a_list_of_messages(messages: JsonValue) -> None:
    assert fault_of(messages).param == "messages"


@pytest.mark.parametrize("content", [None, [], 1, {}, True])
def test_content_without_text_is_refused_by_its_path(content: JsonValue) -> None:
    assert fault_of(user(content)).param == "messages.0.content"


def test_an_image_is_refused_by_its_path() -> None:
    fault = fault_of(user([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]))
    assert fault.param == "messages.0.content.1.type"
    assert "only text" in fault.message


@pytest.mark.parametrize("role", [None, 1, [], {"a": 1}, "wizard"])
def test_an_unknown_role_is_refused_by_its_path(role: JsonValue) -> None:
    assert fault_of([{"role": role, "content": "x"}]).param == "messages.0.role"


def test_the_path_counts_messages_from_zero() -> None:
    first: JsonValue = {"role": "user", "content": "a"}
    assert fault_of([first, 7]).param == "messages.1"
    assert fault_of([first, {"role": "user", "content": "a", "name": 1}]).param == "messages.1.name"
    assert fault_of([first, {"role": "user"}]).param == "messages.1.content"
