"""Messages: from what a client sent to what a chat template can read.

Owns the checks on roles and contents and the translation of what one template cannot read into what it can. Knows
nothing about tokens. Invariant: no text is lost or added except separators, and a refused message is named by its
path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.errors import RequestError
from plait.text.alphabet import lone_surrogate

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_DEPTH = 100

Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a template can read."""

    strings: bool = True
    """A content that is one string."""
    parts: bool = False
    """A content that is a list of typed parts."""
    developer: bool = False
    """It knows the role `developer`; otherwise such messages become `system`."""


def fit_messages(messages: object, reading: Reading) -> list[Message]:
    """Checked copies of `messages` in the form that the template reads; an error names the message and the field."""
    if not isinstance(messages, list | tuple):
        raise RequestError(f"messages is a {type(messages).__name__} but must be a list", param="messages")
    if not messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    fitted: list[Message] = []
    for place, message in enumerate(messages):
        path = f"messages.{place}"
        if not isinstance(message, Mapping):
            raise RequestError(
                f"{path} is a {type(message).__name__} but must be an object with role and content", param=path
            )
        own = {
            str(key): plain_copy(value, joined_path(path, key)) for key, value in message.items() if value is not None
        }
        role = _role(own.get("role"), f"{path}.role")
        own["content"] = _content(own.get("content"), reading, f"{path}.content")
        if own["content"] is None:
            _check_may_be_silent(own, path)
            del own["content"]
        if role == "developer" and not reading.developer:
            _append_system(fitted, own)
        else:
            fitted.append(own)
    return fitted


def _role(role: object, path: str) -> str:
    if not isinstance(role, str) or role not in ROLES:
        shown = "missing" if role is None else f"{role!r:.40}"
        raise RequestError(f"{path} is {shown}; use one of {', '.join(ROLES)}", param=path)
    return role


def _content(content: object, reading: Reading, path: str) -> object:
    if content is None:
        return None
    if isinstance(content, str):
        return content if reading.strings else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise RequestError(
            f"{path} is a {type(content).__name__} but must be a string or a list of text parts", param=path
        )
    if not content:
        raise RequestError(f"{path} is an empty list; send a string or at least one text part", param=path)
    texts = [_text_of(part, f"{path}.{place}") for place, part in enumerate(content)]
    # Clients that split a text into parts mean paragraphs, so where the model reads one string they stay on lines of
    # their own.
    return [{"type": "text", "text": text} for text in texts] if reading.parts else "\n".join(texts)


def _text_of(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise RequestError(
            f"{path} is a {type(part).__name__} but must be an object like {{'type': 'text', 'text': '...'}}",
            param=path,
        )
    if part.get("type") != "text":
        raise RequestError(
            f"{path}.type is {part.get('type')!r:.40}; this model reads only text parts", param=f"{path}.type"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{path}.text is a {type(text).__name__} but must be a string", param=f"{path}.text")
    return text


def _check_may_be_silent(message: Message, path: str) -> None:
    """Only an assistant that called tools may have said nothing."""
    if message["role"] != "assistant" or not (message.get("tool_calls") or message.get("function_call")):
        raise RequestError(
            f"{path}.content is missing; send a string, an empty one if need be", param=f"{path}.content"
        )


def _append_system(fitted: list[Message], developer: Message) -> None:
    """A developer message as a system message, joined to one right before it: many templates read only one."""
    before = fitted[-1] if fitted else None
    if before is None or before["role"] != "system":
        fitted.append({**developer, "role": "system"})
        return
    one, other = before.get("content"), developer.get("content")
    if isinstance(one, str) and isinstance(other, str):
        before["content"] = f"{one}\n\n{other}"
    elif isinstance(one, list) and isinstance(other, list):
        before["content"] = [*one, *other]


def joined_path(path: str, key: object) -> str:
    """The dotted path of a field; a client may call its fields anything, an error must stay one short line."""
    name = str(key)
    return f"{path}.{name}" if name.isidentifier() and len(name) <= 40 else f"{path}.{name!r:.40}"


def plain_copy(value: object, path: str, depth: int = 0) -> object:
    """A copy made of nothing but JSON values, so that a template meets no object with methods of its own."""
    if isinstance(value, str) and (lone := lone_surrogate(value)):
        raise RequestError(f"{path} contains the lone surrogate {lone}, which is no character; remove it", param=path)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth == _MAX_DEPTH:
        raise RequestError(f"{path} is nested more than {_MAX_DEPTH} levels deep; send flatter values", param=path)
    if isinstance(value, Mapping):
        return {str(key): plain_copy(item, path, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_copy(item, path, depth + 1) for item in value]
    raise RequestError(f"{path} holds a {type(value).__name__}; send only JSON values", param=path)


def texts_in(value: object) -> list[str]:
    """Every string inside a plain copy, keys included: what a client can make a template write."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *texts_in(item))]
    if isinstance(value, list):
        return [text for item in value for text in texts_in(item)]
    return []
