"""Templates: where the chat template of a model comes from.

Owns the places in a GGUF file and in a directory of `transformers`, and a file that the user names. Guesses nothing: a
model without a template has none. Invariant: the source that `transformers` would take, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from plait.core.errors import ModelError, UsageError
from plait.text.chat import ChatTemplate
from plait.text.hf_files import MAX_TEMPLATE_BYTES, read_config, read_text

Clock = Callable[[], datetime]

DEFAULT, TOOL_USE = "default", "tool_use"
_FOLDERS = ("additional_chat_templates", "chat_templates")


def chat_template_from_gguf(
    metadata: Mapping[str, object], named_tokens: Mapping[str, str], now: Clock
) -> ChatTemplate | None:
    """The template that comes with the model, or None where there is none (a model without chat training)."""
    key = "tokenizer.chat_template"
    source, tool_use = (_gguf_text(metadata, name) for name in (key, f"{key}.{TOOL_USE}"))
    return None if source is None else ChatTemplate(source, named_tokens, now, tool_use)


def chat_template_from_hf(directory: Path, named_tokens: Mapping[str, str], now: Clock) -> ChatTemplate | None:
    """The same for a model directory: files of their own come before what is written in others."""
    own = read_text(directory / "chat_template.jinja", MAX_TEMPLATE_BYTES)
    if own is not None:
        folders = (read_text(directory / folder / f"{TOOL_USE}.jinja", MAX_TEMPLATE_BYTES) for folder in _FOLDERS)
        return ChatTemplate(own, named_tokens, now, next((found for found in folders if found is not None), None))
    for name in ("tokenizer_config.json", "chat_template.json"):
        value = read_config(directory / name).get("chat_template")
        if value is not None:
            sources = _sources(value, directory / name)
            return ChatTemplate(sources[DEFAULT], named_tokens, now, sources.get(TOOL_USE))
    return None


def chat_template_from_file(path: Path, named_tokens: Mapping[str, str], now: Clock) -> ChatTemplate:
    """A template that the user brings for a model."""
    source = read_text(path, MAX_TEMPLATE_BYTES)
    if source is None:
        raise UsageError(f"the chat template {path} does not exist; give the path of a Jinja file")
    return ChatTemplate(source, named_tokens, now)


def _gguf_text(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise ModelError(f"{key} is a {type(value).__name__} but must be a string; the file is corrupt, get it again")
    return value


def _sources(value: object, path: Path) -> Mapping[str, str]:
    """The templates by name; one without a name is the default."""
    if isinstance(value, str):
        return {DEFAULT: value}
    entries = value.items() if isinstance(value, dict) else _named_entries(value)
    sources = {name: text for name, text in entries if isinstance(name, str) and isinstance(text, str)}
    if DEFAULT not in sources:
        names = ", ".join(sorted(sources))[:100] or "none"
        raise ModelError(
            f"{path}: chat_template has no template called {DEFAULT!r} (it has: {names}); "
            "give one with --chat-template FILE"
        )
    return sources


def _named_entries(value: object) -> list[tuple[object, object]]:
    listed = value if isinstance(value, list) else []
    return [(entry.get("name"), entry.get("template")) for entry in listed if isinstance(entry, dict)]
