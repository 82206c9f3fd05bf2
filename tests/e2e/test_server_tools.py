"""Tools over HTTP: a model that was taught calls by its template, forced to make them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model

TEMPLATE = """\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}<|{{ 'user' if message.role == 'tool' else message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tiny: Path = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", template=TEMPLATE, context=2048)
    with serving(tiny) as running:
        yield running


def tool(name: str, **properties: object) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("move", to={"enum": ["left", "right"]}, far={"type": "boolean"}), tool("stop")]
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Go"}],
    "tools": TOOLS,
    "temperature": 1.0,
    "seed": 5,
    "max_tokens": 120,
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "move"}}])
def test_a_forced_call_is_the_same_in_one_piece_and_as_a_stream(server: ServerProcess, choice: object) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as sdk:
        whole = sdk.chat.completions.create(**ASKED, tool_choice=choice, n=2)
        joined: dict[int, dict[str, str]] = {0: {}, 1: {}}
        reasons: dict[int, str | None] = {}
        for chunk in sdk.chat.completions.create(**ASKED, tool_choice=choice, n=2, stream=True):
            (told,) = chunk.choices
            reasons[told.index] = told.finish_reason or reasons.get(told.index)
            for call in told.delta.tool_calls or []:
                mine = joined[told.index]
                mine.setdefault("name", call.function.name or "")
                mine.setdefault("id", call.id or "")
                mine["arguments"] = mine.get("arguments", "") + (call.function.arguments or "")
    for made in whole.choices:
        (call,) = made.message.tool_calls
        assert made.finish_reason == reasons[made.index] == "tool_calls"
        assert made.message.content is None
        arguments = json.loads(call.function.arguments)
        assert call.function.name in ("move", "stop")
        if call.function.name == "move":
            assert arguments["to"] in ("left", "right")
            assert isinstance(arguments["far"], bool)
        assert joined[made.index]["name"] == call.function.name
        assert joined[made.index]["arguments"] == call.function.arguments
        # Ids come from the id of the whole answer, which is another.
        assert joined[made.index]["id"].startswith("call_")


def test_a_result_goes_back_to_the_model(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as sdk:
        first = sdk.chat.completions.create(**ASKED, tool_choice="required").choices[0].message
        assert first.tool_calls
        messages = [
            *ASKED["messages"],
            first.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "done"},
        ]
        answer = sdk.chat.completions.create(**{**ASKED, "messages": messages, "tool_choice": "none", "max_tokens": 8})
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_a_call_cut_by_length_is_no_complete_one(server: ServerProcess) -> None:
    with server.client() as client:
        body = {**ASKED, "tool_choice": {"type": "function", "function": {"name": "move"}}, "max_tokens": 50}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("tools", [None, [], TOOLS])
@pytest.mark.parametrize(
    "choice", [None, "none", "auto", "required", {"type": "function", "function": {"name": "stop"}}, "banana"]
)
def test_every_choice_with_and_without_tools(server: ServerProcess, tools: object, choice: object) -> None:
    body = {**ASKED, "tools": tools, "tool_choice": choice, "max_tokens": 60}
    with server.client() as client:
        reply = client.post("/v1/chat/completions", json=body)
    needs = choice not in (None, "none", "auto")
    if choice == "banana" or (needs and not tools):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")
    else:
        assert reply.status_code == 200, reply.text
        calls = reply.json()["choices"][0]["message"].get("tool_calls")
        assert bool(calls) if needs else choice != "none" or not calls


def test_a_model_that_knows_no_tools_says_so(tmp_path: Path) -> None:
    with serving(write_tiny_model(tmp_path / "tiny.gguf")) as server, server.client() as client:
        reply = client.post("/v1/chat/completions", json=ASKED)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool_choice": "none"},
        {"tools": None, "add_generation_prompt": False},
        {"tools": None, "continue_final_message": True},
        {"tools": None, "chat_template_kwargs": {"thinking": "on"}},
        {"tools": None, "reasoning_effort": "high"},
    ],
)
def test_a_conversation_has_the_tokens_that_its_chat_has(server: ServerProcess, fields: dict[str, object]) -> None:
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "I"}]
    chat = {"messages": messages, "tools": TOOLS, **fields}
    with server.client() as client:
        made = client.post("/tokenize", json=chat).json()
        told = client.post("/v1/chat/completions", json={**chat, "max_tokens": 1, "return_token_ids": True}).json()
    assert made["tokens"] == told["prompt_token_ids"]
    assert made["count"] == told["usage"]["prompt_tokens"]
