"""/v1/responses as the OpenAI SDK uses it, stateless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.test_server_tools import TEMPLATE
from tests.e2e.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tiny: Path = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with serving(tiny) as running:
        yield running


@pytest.fixture
def sdk(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


ASKED: dict[str, Any] = {"model": "tiny", "input": "héllo", "max_output_tokens": 24, "temperature": 0}


def test_a_response_is_the_same_in_one_piece_as_a_stream_and_as_a_chat(sdk: openai.OpenAI) -> None:
    whole = sdk.responses.create(**ASKED)
    events = list(sdk.responses.create(**ASKED, stream=True))
    chat = sdk.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "héllo"}], max_tokens=24, temperature=0
    )
    assert whole.output_text == chat.choices[0].message.content
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    last = events[-1].response
    assert last.output_text == whole.output_text
    assert last.incomplete_details is not None
    assert last.incomplete_details.reason == "max_output_tokens"
    assert last.usage is not None
    assert whole.usage is not None
    assert whole.usage.input_tokens_details.cache_write_tokens == 0
    assert last.usage.total_tokens == whole.usage.total_tokens


def test_what_openai_describes_as_never_null_is_left_out(sdk: openai.OpenAI) -> None:
    assert "user" not in sdk.responses.create(**ASKED).model_fields_set
    named = sdk.responses.create(**ASKED, user="me", service_tier="fast")
    assert (named.user, named.service_tier) == ("me", "priority")


def test_a_response_tells_every_field_that_open_responses_wants(server: ServerProcess) -> None:
    """The Open Responses schema requires these, null where there is nothing to say."""
    tools: list[dict[str, object]] = [{"type": "function", "name": "f"}, {"type": "web_search"}]
    stopped = {"stop": ["o", "e", "a"], "tools": tools, "tool_choice": "none"}
    with server.client() as client:
        cut = client.post("/v1/responses", json=ASKED).json()
        ended = client.post("/v1/responses", json={**ASKED, **stopped}).json()
        named = {"prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 2, "presence_penalty": 0.5}
        told = client.post("/v1/responses", json={**ASKED, **named}).json()
    nothing = dict.fromkeys(("prompt_cache_key", "safety_identifier", "max_tool_calls", "completed_at"))
    assert {field: cut[field] for field in nothing} == nothing
    assert (cut["presence_penalty"], cut["frequency_penalty"]) == (0, 0)
    assert ended["status"] == "completed"
    assert ended["completed_at"] >= ended["created_at"]
    assert ended["tools"][0] == {**tools[0], "description": None, "parameters": None, "strict": None}
    assert ended["tools"][1] == tools[1]
    assert {field: told[field] for field in named} == named


def test_items_and_instructions_are_the_conversation_that_a_chat_would_send(server: ServerProcess) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "one "}, {"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "three"}]},
        {"role": "user", "content": "four"},
    ]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one two"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    with server.client() as client:
        made = client.post("/v1/responses", json={**ASKED, "instructions": "be brief", "input": items}).json()
        chat = client.post(
            "/v1/chat/completions", json={"messages": messages, "max_tokens": 24, "temperature": 0}
        ).json()
    assert made["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert made["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "told",
    [
        {"stop": ["o", "e", "a"]},
        {"logit_bias": {"120": 100}},
        {"allowed_token_ids": [97, 98, 99]},
        {"ignore_eos": True, "min_tokens": 24},
        {"temperature": 0.9, "seed": 7, "top_k": 5, "frequency_penalty": 1.5},
        {"temperature": 0.9, "seed": 7, "repetition_penalty": 1.7, "presence_penalty": -1},
        {"structured_outputs": {"choice": ["left", "right"]}},
        {"guided_regex": "[0-9]{4}"},
        {"truncate_prompt_tokens": 3},
    ],
)
def test_what_a_sampler_is_told_has_the_names_and_the_meaning_of_chats(
    server: ServerProcess, told: dict[str, object]
) -> None:
    messages = [{"role": "user", "content": "héllo"}]
    with server.client() as client:
        plain = client.post("/v1/responses", json=ASKED).json()
        made = client.post("/v1/responses", json={**ASKED, **told}).json()
        chat = client.post(
            "/v1/chat/completions", json={"messages": messages, "max_tokens": 24, "temperature": 0, **told}
        ).json()
    text = made["output"][0]["content"][0]["text"]
    assert text == chat["choices"][0]["message"]["content"]
    assert made["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    if "ignore_eos" not in told:
        assert text != plain["output"][0]["content"][0]["text"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"previous_response_id": "resp_1"}, 404, "previous_response_id"),
        ({"background": True}, 400, "background"),
        ({"conversation": "c"}, 400, "conversation"),
        ({"input": []}, 400, "input"),
        ({"input": 5}, 400, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input.0.content.0"),
        ({"input": [{"role": "bad", "content": "x"}]}, 400, "input.0.role"),
        ({"max_output_tokens": -1}, 400, "max_output_tokens"),
        ({"max_output_tokens": 100_000}, 400, "max_output_tokens"),
        ({"text": "json"}, 400, "text"),
        ({"model": "other"}, 404, "model"),
        ({"n": 2}, 400, "n"),
        ({"prompt_logprobs": 1}, 400, "prompt_logprobs"),
        ({"bad_words": ["x"]}, 400, "bad_words"),
        ({"min_p": 2}, 400, "min_p"),
        ({"stream_options": [None]}, 400, "stream_options"),
        ({"repetition_penalty": 5e-324}, 400, "repetition_penalty"),
    ],
)
def test_what_cannot_be_done_is_refused_in_this_endpoints_words(
    server: ServerProcess, fields: dict[str, object], status: int, param: str
) -> None:
    with server.client() as client:
        reply = client.post("/v1/responses", json={**ASKED, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), reply.text


def test_tools_of_others_are_skipped_and_a_probe_is_answered(server: ServerProcess) -> None:
    with server.client() as client:
        skipped = client.post("/v1/responses", json={**ASKED, "tools": [{"type": "web_search"}, {"type": "namespace"}]})
        probe = client.post("/v1/responses", json={**ASKED, "input": "", "max_output_tokens": 1})
        kept = client.get("/v1/responses/resp_1")
    assert skipped.status_code == 200
    assert probe.status_code == 200
    assert kept.status_code == 404


def function(name: str, **properties: object) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "name": name, "parameters": schema}


WITH_TOOLS: dict[str, Any] = {
    "model": "tiny",
    "input": "Go",
    "tools": [function("move", to={"enum": ["left", "right"]}), {"type": "web_search"}, function("stop")],
    "temperature": 1.0,
    "max_output_tokens": 120,
    "extra_body": {"seed": 5},
}


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    tiny = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", template=TEMPLATE, context=2048)
    with serving(tiny) as server, openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "move"}])
def test_a_call_is_an_item_the_same_in_one_piece_and_as_a_stream(with_tools: openai.OpenAI, choice: Any) -> None:
    whole = with_tools.responses.create(**WITH_TOOLS, tool_choice=choice)
    events: list[Any] = list(with_tools.responses.create(**WITH_TOOLS, tool_choice=choice, stream=True))
    (item,) = whole.output
    assert item.type == "function_call"
    assert item.call_id.startswith("call_")
    assert item.name in ("move", "stop")
    json.loads(item.arguments)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    told = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(told) == item.arguments
    assert len(told) > 1 or item.name == "stop"
    assert [event.type for event in events if event.type != "response.function_call_arguments.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[-2].item == events[-1].response.output[0]
    assert (events[-2].item.name, events[-2].item.arguments) == (item.name, item.arguments)


def test_calls_and_results_go_back_as_one_message_each(with_tools: openai.OpenAI) -> None:
    first = with_tools.responses.create(**WITH_TOOLS, tool_choice="required").output[0]
    assert first.type == "function_call"
    call = {"type": "function_call", "call_id": "call_a", "name": "move", "arguments": '{"to": "left"}'}
    items = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "Well"},
        call,
        {**call, "call_id": "call_b"},
        {"type": "function_call_output", "call_id": "call_a", "output": "done"},
        {"type": "function_call_output", "call_id": "call_b", "output": [{"type": "input_text", "text": "done"}]},
    ]
    calls = [
        {"id": name, "type": "function", "function": {"name": "move", "arguments": '{"to": "left"}'}}
        for name in ("call_a", "call_b")
    ]
    messages: list[Any] = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "Well", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_a", "content": "done"},
        {"role": "tool", "tool_call_id": "call_b", "content": "done"},
    ]
    tools: Any = [
        {"type": "function", "function": {"name": one["name"], "parameters": one["parameters"]}}
        for one in WITH_TOOLS["tools"]
        if one["type"] == "function"
    ]
    asked = {**WITH_TOOLS, "input": items, "max_output_tokens": 4}
    made = with_tools.responses.create(**asked)
    chat = with_tools.chat.completions.create(model="tiny", messages=messages, tools=tools, max_tokens=4)
    assert made.usage is not None
    assert chat.usage is not None
    assert made.usage.input_tokens == chat.usage.prompt_tokens


def test_text_beside_offered_tools_is_a_message(with_tools: openai.OpenAI) -> None:
    asked = {**WITH_TOOLS, "temperature": 0, "max_output_tokens": 12}
    whole = with_tools.responses.create(**asked)
    events: list[Any] = list(with_tools.responses.create(**asked, stream=True))
    assert [item.type for item in whole.output] == ["message"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
