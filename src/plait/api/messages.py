"""Messages: the conversation of a chat body, as far as no template is needed to judge it.

Owns the refusal of tool messages. Roles and contents are checked by the text room, which knows what a template reads.
Invariant: messages pass unchanged.
"""

from __future__ import annotations

from plait.api.bodies import JsonObject, JsonValue, shown
from plait.core.errors import RequestError

_TOOL_ROLES = ("tool", "function")
_TOOL_FIELDS = ("tool_calls", "function_call")


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
    if message.get("role") in _TOOL_ROLES:
        raise RequestError(
            f"{path}.role is {shown(message['role'])}; tools are not supported yet: send the result as a user message",
            param=f"{path}.role",
            code="unsupported_parameter",
        )
    for field in _TOOL_FIELDS:
        if message.get(field):
            raise RequestError(
                f"{path}.{field} is set; tools are not supported yet: leave it out and say in content what was called",
                param=f"{path}.{field}",
                code="unsupported_parameter",
            )
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise RequestError(f"{path}.name is {shown(name)}; it must be a string", param=f"{path}.name")
    return message
