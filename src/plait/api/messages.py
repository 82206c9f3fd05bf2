"""Messages: the conversation of a chat body.

Owns roles and content: which are known, which a text model can read, and how text parts become one string. Renders
nothing.
Invariant: a `Message` that left this file has a role that every chat template knows and plain text as content.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.api.bodies import JsonObject, JsonValue, shown
from plait.core.errors import RequestError

# Templates are written for these three; OpenAI renamed system to developer, and means the same.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")
_TOOL_FIELDS = ("tool_calls", "function_call")


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str
    name: str | None = None


def parse_messages(messages: JsonValue) -> tuple[Message, ...]:
    """The conversation, or `RequestError` with the path of the first fault."""
    if not isinstance(messages, list):
        raise RequestError(
            f'messages is {shown(messages)}; it must be a list such as [{{"role": "user", "content": "Hello"}}]',
            param="messages",
        )
    if not messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    return tuple(_message(message, f"messages.{place}") for place, message in enumerate(messages))


def _message(message: JsonValue, path: str) -> Message:
    if not isinstance(message, dict):
        raise RequestError(f"{path} is {shown(message)}; it must be an object with role and content", param=path)
    role = _role(message.get("role"), f"{path}.role")
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
    return Message(role, _content(message, f"{path}.content"), name)


def _role(role: JsonValue, path: str) -> str:
    if role in _TOOL_ROLES:
        raise RequestError(
            f"{path} is {shown(role)}; tools are not supported yet: send the result as a user message",
            param=path,
            code="unsupported_parameter",
        )
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(f"{path} is {shown(role)}; it must be one of {', '.join(_ROLES)}", param=path)
    return _ROLES[role]


def _content(message: JsonObject, path: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise RequestError(f"{path} is {shown(content)}; it must be a string or a list of text parts", param=path)
    # Parts are separate blocks of text: joined bare, the last word of one would run into the first of the next.
    return "\n".join(_text_part(part, f"{path}.{place}") for place, part in enumerate(content))


def _text_part(part: JsonValue, path: str) -> str:
    if not isinstance(part, dict):
        raise RequestError(
            f'{path} is {shown(part)}; it must be a part such as {{"type": "text", "text": "Hello"}}', param=path
        )
    if part.get("type") != "text":
        raise RequestError(
            f"{path}.type is {shown(part.get('type'))}; this model reads text only: send parts of type text",
            param=f"{path}.type",
            code="unsupported_content",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{path}.text is {shown(text)}; it must be a string", param=f"{path}.text")
    return text
