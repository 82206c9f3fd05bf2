"""Messages: the conversation of a chat body, as far as no template is needed to judge it.

Owns the check of calls in them. Roles and contents are checked by the text room, which knows what a template reads.
Invariant: messages pass unchanged, but for the arguments of calls, which become objects.
"""

from __future__ import annotations

from plait.api.bodies import JsonObject, JsonValue, shown
from plait.api.tools import checked_call
from plait.core.errors import RequestError


def parse_messages(messages: JsonValue) -> tuple[JsonObject, ...]:
    """The conversation, or `RequestError` with the path of the first fault."""
    if not isinstance(messages, list):
        raise RequestError(
            f'messages is {shown(messages)}; it must be a list such as [{{"role": "user", "content": "Hello"}}]',
            param="messages",
        )
    if not messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    return tuple(_message(message, f"messages.{place}") for place, message in enumerate(messages))


def _message(message: JsonValue, path: str) -> JsonObject:
    if not isinstance(message, dict):
        raise RequestError(f"{path} is {shown(message)}; it must be an object with role and content", param=path)
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise RequestError(f"{path}.tool_calls is {shown(calls)}; it must be a list", param=f"{path}.tool_calls")
        checked = [checked_call(call, f"{path}.tool_calls.{place}") for place, call in enumerate(calls)]
        # An empty list is what some clients send for "none", and templates would write it out.
        message = {key: value for key, value in message.items() if key != "tool_calls"}
        if checked:
            message["tool_calls"] = list[JsonValue](checked)
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise RequestError(f"{path}.name is {shown(name)}; it must be a string", param=f"{path}.name")
    return message
