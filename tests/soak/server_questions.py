"""Server questions: bodies of every kind, what they are answered, and bodies that must be refused.

Owns the pairs of path and body, and the form in which answers are compared: the same for a stream and for one piece.
Invariant: a question says its seed or is greedy, so its answer depends on nothing but itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_TOKENS = 60
TEMPLATE = """\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}<|{{ 'user' if message.role == 'tool' else message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

_SCHEMA = {"type": "object", "properties": {"to": {"enum": ["left", "right"]}}, "required": ["to"]}
_TOOL = {"type": "function", "function": {"name": "move", "parameters": {**_SCHEMA, "additionalProperties": False}}}


@dataclass(frozen=True, slots=True)
class Question:
    path: str
    body: Mapping[str, Any]


def questions(count: int) -> list[Question]:
    """Kinds in turn, lengths mixed; some begin alike."""
    return [_question(number) for number in range(count)]


def _question(number: int) -> Question:
    words = f"{'the same beginning ' * (number % 4)}question {number}"
    length = 1 + (number * number * 7) % MOST_TOKENS
    body: dict[str, Any] = {"max_tokens": length, "seed": number, "temperature": (0, 0.8, 1.2)[number % 3]}
    chat = {**body, "messages": [{"role": "user", "content": words}]}
    match number % 8:
        case 0:
            return Question("/v1/completions", {**body, "prompt": words, "ignore_eos": True, "return_token_ids": True})
        case 1:
            return Question("/v1/completions", {**body, "prompt": [words, words[::-1]], "n": 3, "logprobs": 2})
        case 2:
            return Question("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 3, "n": 2})
        case 3:
            return Question("/v1/chat/completions", {**chat, "ignore_eos": True, "stop": ["\u00e9", "ab"]})
        case 4:
            return Question("/v1/completions", {**body, "prompt": words, "guided_regex": r"[a-f]{4}-\d{2}"})
        case 5:
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}
            return Question("/v1/chat/completions", {**chat, "response_format": form})
        case 6:
            return Question("/v1/chat/completions", {**chat, "tools": [_TOOL], "tool_choice": "required"})
        case _:
            return Question("/v1/completions", {**body, "prompt": words, "min_tokens": length, "logprobs": 0})


WRONG = (
    Question("/v1/completions", {"prompt": "x" * 9000}),
    Question("/v1/completions", {"prompt": "x", "temperature": -1}),
    Question("/v1/completions", {"prompt": []}),
    Question("/v1/chat/completions", {"messages": []}),
    Question("/v1/chat/completions", {"messages": [{"role": "user", "content": 7}]}),
    Question("/v1/completions", {"prompt": "x", "guided_regex": "("}),
    Question("/v1/completions", {"prompt": "x", "n": 10**9}),
    Question("/v1/responses", {"input": [{"role": "messages.99", "content": "x"}]}),
)
"""Each is to be refused with 400."""


def whole_answer(raw: bytes) -> list[dict[str, Any]]:
    """The choices of an answer in one piece, as they are compared."""
    return _ordered(_choice(choice, choice.get("message")) for choice in json.loads(raw)["choices"])


def streamed_answer(raw: bytes) -> list[dict[str, Any]]:
    """The choices of a stream, joined; `ValueError` for one that does not end as it should."""
    events = raw.decode().removesuffix("\n\n").split("\n\n")
    events = [event for event in events if not event.startswith(":")]
    if events[-1] != "data: [DONE]" or events.count("data: [DONE]") != 1:
        raise ValueError(f"the stream ends in {events[-1][:200]!r}")
    joined: dict[int, dict[str, Any]] = {}
    for event in events[:-1]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            told = _choice(choice, choice.get("delta"))
            mine = joined.setdefault(told["index"], _choice({"index": told["index"]}, None))
            _add(mine, told)
    return _ordered(joined.values())


def _ordered(choices: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(choices, key=lambda choice: int(choice["index"]))


def _choice(choice: Mapping[str, Any], said: Mapping[str, Any] | None) -> dict[str, Any]:
    said = said or {}
    logprobs = choice.get("logprobs") or {}
    calls = [call["function"] for call in said.get("tool_calls") or []]
    return {
        "index": choice["index"],
        "text": choice.get("text") or said.get("content") or "",
        "tokens": list(choice.get("token_ids") or []),
        "called": "".join(call.get("name", "") for call in calls),
        "arguments": "".join(call.get("arguments", "") for call in calls),
        "finish_reason": choice.get("finish_reason"),
        "logprobs": {key: list(values) for key, values in logprobs.items() if values},
    }


def _add(mine: dict[str, Any], told: Mapping[str, Any]) -> None:
    for key in ("text", "tokens", "called", "arguments"):
        mine[key] += told[key]
    mine["finish_reason"] = told["finish_reason"] or mine["finish_reason"]
    for key, values in told["logprobs"].items():
        mine["logprobs"].setdefault(key, []).extend(values)
