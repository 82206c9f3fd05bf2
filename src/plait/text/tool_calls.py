"""Tool calls: which parts of an answer's text are calls of functions.

Owns the three ways in which models write calls and a reader that works while the text arrives: each character is looked
at a constant number of times, however it is cut. Judges no arguments: they are the caller's to check.
Invariants: the events do not depend on how the text was cut; text that turns out to be no call is given back as text,
none of it lost.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum


class ToolFormat(StrEnum):
    """How a model writes a call."""

    HERMES = "hermes"
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them, text before and between."""
    LLAMA3_JSON = "llama3_json"
    """The whole answer is {"name": ..., "parameters": {...}}, perhaps behind <|python_tag|>; more behind a `;`."""
    MISTRAL = "mistral"
    """[TOOL_CALLS] and then a list of calls, or a name, [ARGS] and the arguments."""


def tool_format_of(template: str) -> ToolFormat | None:
    """What a chat template teaches; None where it knows of no tools."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL
    if "<tool_call>" in template:
        return ToolFormat.HERMES
    if "<|python_tag|>" in template or '"parameters"' in template or "ipython" in template:
        return ToolFormat.LLAMA3_JSON
    return ToolFormat.HERMES


@dataclass(frozen=True, slots=True)
class Text:
    """What the model says to people."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of the function `name`; `arguments` so far."""

    index: int
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


ToolEvent = Text | CallBegun | Arguments

_HEAD = re.compile(r'\{\s*"(?:name|function)"\s*:\s*"([^"\\]{1,256})"\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_MAX_HEAD_CHARS = 1024
_MAX_MARK_CHARS = 32
_TAG = "<|python_tag|>"
_ARGUMENTS = "[ARGS]"
_BLANK = " \t\r\n"


class _At(StrEnum):
    """What the next character belongs to."""

    TEXT = "text, or the beginning of a mark"
    START = "llama: nothing said so far"
    BEFORE = "between a mark and a call"
    NAME = "mistral: a name without quotes"
    OBJECT = "an object that may be a call"
    ARGUMENTS = "arguments that are being told"
    TAIL = "between arguments and the end of their object"
    BEHIND = "behind a call"
    PLAIN = "nothing but text any more"


class ToolCallReader:
    """Reads one answer. `push` and `finish` give events in order."""

    def __init__(self, form: ToolFormat, *, only_first: bool = False) -> None:
        """`only_first`: calls behind the first are not told of."""
        self._form = form
        self._only_first = only_first
        self._at = _At.START if form is ToolFormat.LLAMA3_JSON else _At.TEXT
        self._opening = {ToolFormat.HERMES: "<tool_call>", ToolFormat.MISTRAL: "[TOOL_CALLS]"}.get(form, "")
        self._closing = "</tool_call>" if form is ToolFormat.HERMES else ""
        self._held: list[str] = []
        """What may yet turn out to be text."""
        self._seen = ""
        """Of it, what a mark could be: no blanks, and not more than a mark has."""
        self._has_spoken = False
        """Whether text came behind the last call."""
        self._prefix = ""
        """What stood between the opening and the object that is being read."""
        self._out: list[str] = []
        """Characters of the event that is being made."""
        self._events: list[ToolEvent] = []
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._outer = 0
        """Depth at which the arguments end."""
        self._num_begun = 0
        self.num_calls = 0
        """Calls that are complete."""
        self._step = {
            _At.TEXT: self._in_text,
            _At.START: self._at_start,
            _At.BEFORE: self._before,
            _At.NAME: self._in_name,
            _At.OBJECT: self._in_object,
            _At.ARGUMENTS: self._in_arguments,
            _At.TAIL: self._in_tail,
            _At.BEHIND: self._behind,
            _At.PLAIN: self._out.append,
        }

    def push(self, text: str) -> list[ToolEvent]:
        for char in text:
            self._step[self._at](char)
        return self._told()

    def finish(self) -> list[ToolEvent]:
        """The answer has ended: what is held was no call, but blanks behind one are nothing to say."""
        held = "".join(self._held)
        self._drop()
        is_opened = self._form is ToolFormat.HERMES or not self._num_begun
        if self._at in (_At.BEFORE, _At.NAME, _At.OBJECT) and is_opened:
            held = self._opening + (self._prefix if self._at is _At.OBJECT else "") + held
        if (self._has_spoken or not self._num_begun or held.strip()) and self._at not in (_At.TAIL, _At.BEHIND):
            self._flush()
            self._out.append(held)
            self._at = _At.PLAIN
        return self._told()

    def _told(self) -> list[ToolEvent]:
        self._flush()
        events, self._events = self._events, []
        if self._only_first:
            return [event for event in events if isinstance(event, Text) or event.index == 0]
        return events

    def _flush(self) -> None:
        if self._out:
            text = "".join(self._out)
            self._out.clear()
            inside = self._at is _At.ARGUMENTS
            self._events.append(Arguments(self._num_begun - 1, text) if inside else Text(text))

    def _hold(self, char: str) -> None:
        self._held.append(char)
        if char not in _BLANK and len(self._seen) < _MAX_MARK_CHARS:
            self._seen += char

    def _drop(self) -> None:
        """What was held is neither text nor needed any more."""
        self._held.clear()
        self._seen = ""

    def _give_back(self, text: str) -> None:
        """It was text after all."""
        self._drop()
        if text:
            self._out.append(text)
            self._has_spoken = True

    def _in_text(self, char: str) -> None:
        """`held`: blanks behind a call, then the beginning of the opening."""
        if char == self._opening[len(self._seen)]:
            self._hold(char)
            if len(self._seen) == len(self._opening):
                self._drop()
                self._flush()
                self._at = _At.BEFORE
        elif not self._seen and char in _BLANK and self._num_begun and not self._has_spoken:
            self._hold(char)
        elif char == self._opening[0]:
            self._give_back("".join(self._held))
            self._hold(char)
        else:
            self._give_back("".join(self._held) + char)

    def _at_start(self, char: str) -> None:
        """`held`: blanks, and the beginning of the tag."""
        seen = self._seen
        if char in _BLANK and seen in ("", _TAG):
            self._hold(char)
        elif char == ";" and self._num_begun and not seen:
            self._drop()
        elif char == "{" and seen in ("", _TAG):
            self._begin_object(char)
        elif len(seen) < len(_TAG) and char == _TAG[len(seen)]:
            self._hold(char)
        else:
            self._give_back("".join(self._held) + char)
            self._at = _At.PLAIN

    def _before(self, char: str) -> None:
        """`held`: what stood behind the opening so far. Mistral may open again behind a call."""
        again = self._seen + char
        if self._num_begun and self._opening.startswith(again):
            self._hold(char)
            if again == self._opening:
                self._drop()
        elif char == "{":
            self._begin_object(char)
        elif char in _BLANK or (self._form is ToolFormat.MISTRAL and char in "[,"):
            self._hold(char)
        elif self._form is ToolFormat.MISTRAL and char == "]" and self._num_begun:
            self._drop()
            self._at = _At.TEXT
        elif self._form is ToolFormat.MISTRAL and (char.isalnum() or char == "_"):
            self._hold(char)
            self._at = _At.NAME
        else:
            self._leave(char)

    def _in_name(self, char: str) -> None:
        """`held` ends in the name, and perhaps in the beginning of [ARGS]."""
        name, _, mark = "".join(self._held).strip(_BLANK + "[,").partition("[")
        if mark or char == "[":
            if (f"[{mark}{char}" if mark else char) == _ARGUMENTS[: len(mark) + 2 if mark else 1]:
                self._held.append(char)
            elif mark == _ARGUMENTS[1:] and char in _BLANK:
                return
            elif mark == _ARGUMENTS[1:] and char == "{":
                self._begin_arguments(name, char, depth=0)
            else:
                self._leave(char)
        elif char == "{":
            self._begin_arguments(name, char, depth=0)
        elif len(name) < 256 and (char.isalnum() or char in "_.:/-"):
            self._held.append(char)
        else:
            self._leave(char)

    def _in_object(self, char: str) -> None:
        """`held`: the object from its brace on."""
        before = self._depth
        self._scan(char)
        if char == "{" and before == 1 and self._depth == 2 and len(self._held) <= _MAX_HEAD_CHARS:
            found = _HEAD.fullmatch("".join(self._held))
            if found is not None:
                self._begin_arguments(found[1], char, depth=1)
                return
        self._held.append(char)
        if self._depth == 0:
            self._whole_object("".join(self._held))

    def _in_arguments(self, char: str) -> None:
        self._scan(char)
        self._out.append(char)
        if self._depth == self._outer:
            self._flush()
            self.num_calls += 1
            self._at = _At.BEHIND if self._outer == 0 else _At.TAIL
            self._go_behind_call()

    def _in_tail(self, char: str) -> None:
        self._scan(char)
        if self._depth == 0:
            self._at = _At.BEHIND
            self._go_behind_call()

    def _behind(self, char: str) -> None:
        """Hermes: `held` is blanks and the beginning of the closing mark."""
        if not self._seen and char in _BLANK:
            self._hold(char)
        elif char == self._closing[len(self._seen)]:
            self._hold(char)
            if len(self._seen) == len(self._closing):
                self._drop()
                self._at = _At.TEXT
        else:
            # A model that forgot to close goes on with the next call or with text.
            self._at = _At.TEXT
            held = "".join(self._held)
            self._drop()
            for one in held + char:
                self._in_text(one)

    def _go_behind_call(self) -> None:
        if self._at is not _At.BEHIND or self._form is ToolFormat.HERMES:
            return
        self._at = _At.BEFORE if self._form is ToolFormat.MISTRAL else _At.START

    def _begin_object(self, char: str) -> None:
        self._prefix = "".join(self._held)
        self._drop()
        self._depth, self._in_string, self._is_escaped = 0, False, False
        self._at = _At.OBJECT
        self._in_object(char)

    def _begin_arguments(self, name: str, char: str, depth: int) -> None:
        self._drop()
        self._flush()
        self._has_spoken = False
        self._events.append(CallBegun(self._num_begun, name))
        self._num_begun += 1
        self._at, self._outer = _At.ARGUMENTS, depth
        if depth == 0:
            self._depth, self._in_string, self._is_escaped = 0, False, False
            self._scan(char)
        self._out.append(char)

    def _whole_object(self, text: str) -> None:
        """An object whose head was no call's: perhaps its keys came in another order."""
        self._drop()
        call = _call_in(text)
        if call is None:
            self._give_back(self._opening + self._prefix + text)
            self._at = _At.TEXT if self._form is ToolFormat.HERMES else _At.PLAIN
            return
        self._flush()
        self._has_spoken = False
        self._events.append(CallBegun(self._num_begun, *call))
        self._num_begun += 1
        self.num_calls += 1
        self._at = _At.BEHIND
        self._go_behind_call()

    def _leave(self, char: str) -> None:
        """No call comes after the opening."""
        self._give_back(self._opening + "".join(self._held))
        self._at = _At.TEXT
        self._in_text(char)

    def _scan(self, char: str) -> None:
        """Count brackets outside of strings."""
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1


def _call_in(text: str) -> tuple[str, str] | None:
    """Name and arguments of an object that is a call."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name = value.get("name", value.get("function"))
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or not name:
        return None
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
