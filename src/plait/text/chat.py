"""Chat templates: from messages to the text that a model was trained to read.

Owns compiling and rendering one template as `transformers` would. Knows nothing about token ids. Invariant: rendering
changes nothing outside; a template that cannot render a request refuses that request and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from jinja2.exceptions import TemplateError

from plait.core.errors import ModelError, RequestError
from plait.text.messages import Reading, joined_path, plain_copy, texts_in
from plait.text.sandbox import BUDGET, Budget, Sandbox

_MAX_SOURCE_CHARS = 1_000_000
_BASE_STEPS = 100_000
_STEPS_PER_TEXT = 1_000

# What running a stranger's template can raise: jinja's own errors and those of Python's operators on the wrong values.
_TEMPLATE_TROUBLE = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    NameError,
    RuntimeError,
    MemoryError,
)
_REASONING = ("reasoning_content", "thinking", "reasoning")
_DEVELOPER = re.compile(r"""(['"])developer\1""")
_PROBE = "a text that no template writes itself"


class ChatTemplate:
    """One compiled template. Immutable, so it may be shared between threads.

    `named_tokens` are what the template may refer to as `bos_token`, `eos_token` and so on; `now` is the clock behind
    `strftime_now`. `tool_use` is the source of a second template that some models have for requests with tools.
    """

    __slots__ = ("_named_tokens", "_template", "_tool_use", "reading", "source")

    def __init__(
        self,
        source: str,
        named_tokens: Mapping[str, str],
        now: Callable[[], datetime],
        tool_use: str | None = None,
    ) -> None:
        if len(source) > _MAX_SOURCE_CHARS:
            raise ModelError(
                f"the chat template has {len(source):,} characters, above {_MAX_SOURCE_CHARS:,}; give a smaller one"
            )
        try:
            self._template = Sandbox(now).from_string(source)
        except (*_TEMPLATE_TROUBLE, SyntaxError) as trouble:
            line = getattr(trouble, "lineno", None)
            where = f" at line {line}" if line else ""
            raise ModelError(
                f"the chat template cannot be compiled{where}: {_one_line(trouble)}; give another one"
            ) from trouble
        self.source = source
        self._named_tokens = dict(named_tokens)
        self.reading = self._probe()
        self._tool_use = None if tool_use is None else ChatTemplate(tool_use, named_tokens, now)

    def for_tools(self, tools: Sequence[Mapping[str, object]] | None) -> ChatTemplate:
        """The template for a request with these tools, usually this one."""
        return self if tools is None or self._tool_use is None else self._tool_use

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Exactly what `transformers` renders.

        `variables` are further names for the template and override the token names.
        """
        if not messages:
            raise RequestError("messages is empty; send at least one message", param="messages")
        names: dict[str, object] = {"documents": None, **self._named_tokens}
        names |= {key: plain_copy(value, joined_path("variables", key)) for key, value in (variables or {}).items()}
        names["messages"] = [_as_read(message, place) for place, message in enumerate(messages)]
        names["tools"] = plain_copy(tools, "tools")
        names["add_generation_prompt"] = add_generation_prompt
        names[BUDGET] = Budget(_BASE_STEPS + _STEPS_PER_TEXT * len(texts_in(names)))
        try:
            return self._template.render(names)
        except _TEMPLATE_TROUBLE as trouble:
            raise RequestError(
                f"the model's chat template refuses these messages: {_one_line(trouble)}", param="messages"
            ) from trouble

    def _probe(self) -> Reading:
        """Find out what the template reads by letting it."""
        strings = self._writes_probe(_PROBE)
        parts = self._writes_probe([{"type": "text", "text": _PROBE}])
        return Reading(strings=strings or not parts, parts=parts, developer=_DEVELOPER.search(self.source) is not None)

    def _writes_probe(self, content: object) -> bool:
        try:
            text = self.render([{"role": "user", "content": content}], add_generation_prompt=False)
        except RequestError:
            return False
        # A template for strings that prints its content blindly would show Python's or JSON's notation of the list.
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text


def _as_read(message: Mapping[str, object], place: int) -> dict[str, object]:
    """A message as `transformers` shows it: nothing null, and reasoning under the names that templates use."""
    given = {
        str(key): plain_copy(value, joined_path(f"messages.{place}", key))
        for key, value in message.items()
        if value is not None
    }
    reasoning = next((given[key] for key in _REASONING if key in given), None)
    return given if reasoning is None else {"thinking": reasoning, **given, "reasoning_content": reasoning}


def _one_line(trouble: BaseException) -> str:
    return " ".join(str(trouble).split())[:300] or type(trouble).__name__
