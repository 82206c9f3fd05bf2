"""Prompts: from a conversation to token ids, with the control tokens that the template wrote and no others.

Owns the border between template and client inside one rendered text. Knows nothing about requests or HTTP. Invariant:
a spelling of a control token in anything that a client sent is encoded as ordinary text. Limit: a template that cuts
a message into pieces and writes them side by side again could still spell one; no known template does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from plait.core.errors import RequestError
from plait.text.chat import ChatTemplate
from plait.text.literals import Literals
from plait.text.messages import fit_messages, joined_path, plain_copy, texts_in
from plait.text.tokenizer import Tokenizer

# Supplementary private use: no character there has a meaning, a case or a width, so templates pass them on untouched.
_PRIVATE = range(0xF0000, 0xFFFFE)
_PRIVATE_CHAR = re.compile("[\U000f0000-\U000ffffd]")

_Value = TypeVar("_Value")


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: object,
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    variables: Mapping[str, object] | None = None,
) -> list[int]:
    """The ids that the model should continue; those of `transformers` unless a client spells control tokens.

    What clients sent is searched first. Only where something in it could be taken for a control token is it rendered
    with marks: each control token's spelling becomes one private character, and a border goes after text that a
    neighbour could complete to a control token, or before text that could complete one. The rendered text is then cut
    at control tokens, all of them the template's own, and the marks are turned back before the pieces between are
    encoded as plain text.
    """
    if template is None:
        raise RequestError(
            "this model has no chat template; use /v1/completions, or start with --chat-template FILE",
            param="messages",
            code="no_chat_template",
        )
    template = template.for_tools(tools)
    fitted = fit_messages(messages, template.reading)
    # Under the name that the field has in a body, because that is what the error is read for.
    named = {
        key: plain_copy(value, joined_path("chat_template_kwargs", key)) for key, value in (variables or {}).items()
    }
    texts = texts_in([fitted, plain_copy(tools, "tools"), named])
    if not any(_is_suspect(tokenizer.control, text) for text in texts):
        rendered = template.render(fitted, add_generation_prompt, tools, variables)
        return tokenizer.encode(rendered, add_special=False, parse_special=True)
    marks = _Marks(tokenizer.control, [*texts, template.source])
    rendered = template.render(
        [marks.put_in(message) | {"role": message["role"]} for message in fitted],
        add_generation_prompt,
        marks.put_in(tools),
        marks.put_in(variables),
    )
    return _encode_marked(tokenizer, marks, rendered)


def _encode_marked(tokenizer: Tokenizer, marks: _Marks, rendered: str) -> list[int]:
    cut = tokenizer.control.split(rendered)
    cut[::2] = [marks.take_out(piece) for piece in cut[::2]]
    return tokenizer.encode_cut(cut)


def _is_suspect(control: Literals, text: str) -> bool:
    return control.found_in(text) or control.begun_by(text.rstrip()) or control.completed_by(text.lstrip())


class _Marks:
    """Private characters that stand for control tokens in client text while it passes through a template."""

    __slots__ = ("_border", "_control", "_escaped", "_spellings", "_stand_ins")

    def __init__(self, control: Literals, seen: Sequence[str]) -> None:
        used = {char for text in (*seen, *control.ids) for char in _PRIVATE_CHAR.findall(text)}
        free = (char for code in _PRIVATE if (char := chr(code)) not in used)
        self._control = control
        self._stand_ins = dict(zip(control.ids, free, strict=False))
        border = next(free, None)
        if border is None:
            raise RequestError(
                "the messages use nearly every private-use character of Unicode; remove some", param="messages"
            )
        self._border = border
        self._spellings = {mark: text for text, mark in self._stand_ins.items()} | {border: ""}
        self._escaped = {_escape(mark): _escape(text) for mark, text in self._spellings.items()}

    def put_in(self, value: _Value) -> _Value:
        """A copy of what a client sent with every spelling of a control token replaced."""
        marked: object = value
        if isinstance(value, str):
            marked = self._mark(value)
        elif isinstance(value, Mapping):
            # No borders in keys: templates look values up by them.
            marked = {self._replace(key): self.put_in(item) for key, item in value.items()}
        elif isinstance(value, list | tuple):
            marked = [self.put_in(item) for item in value]
        return marked  # type: ignore[return-value]  # strings, mappings and lists stay what they were

    def take_out(self, rendered: str) -> str:
        """Turn marks back into what the client wrote, also where the template escaped them as JSON."""
        if "\\ud" in rendered:
            for mark, text in self._escaped.items():
                rendered = rendered.replace(mark, text)
        return rendered.translate({ord(mark): text for mark, text in self._spellings.items()})

    def _replace(self, text: str) -> str:
        pieces = self._control.split(text)
        pieces[1::2] = [self._stand_ins[piece] for piece in pieces[1::2]]
        return "".join(pieces)

    def _mark(self, text: str) -> str:
        marked = self._replace(text)
        # Borders hug the visible text: templates strip contents, and what they strip must not shield what they keep.
        visible = marked.strip()
        if not visible:
            return marked
        start = marked.index(visible)
        before = self._border if self._control.completed_by(visible) else ""
        after = self._border if self._control.begun_by(visible) else ""
        return f"{marked[:start]}{before}{visible}{after}{marked[start + len(visible) :]}"


def _escape(text: str) -> str:
    return json.dumps(text)[1:-1]
