"""Structured output over HTTP, on a model whose own words mean nothing: what has the form has it by force."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import openai
import pytest
from pydantic import BaseModel
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tiny: Path = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with serving(tiny) as running:
        yield running


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    legs: Literal[3, 4]


class Owner(BaseModel):
    vip: bool
    pets: list[Pet]


CHAT = [{"role": "user", "content": "Who owns what?"}]


def test_the_sdk_parses_what_it_asked_for(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as sdk:
        made = sdk.chat.completions.parse(
            model="tiny",
            messages=CHAT,
            response_format=Pet,
            temperature=1.0,
            seed=3,
            max_tokens=200,  # type: ignore[arg-type]
        )
        assert isinstance(made.choices[0].message.parsed, Pet)
        assert made.choices[0].finish_reason == "stop"
        response = sdk.responses.parse(model="tiny", input="x", text_format=Pet, temperature=0, max_output_tokens=200)
        assert isinstance(response.output_parsed, Pet)


@pytest.mark.parametrize("stream", [False, True])
def test_the_form_holds_for_every_choice_and_beside_others(server: ServerProcess, stream: bool) -> None:
    wanted = r"[a-f]{4}-\d{2}"

    def ask(number: int) -> list[str]:
        body = {
            "prompt": f"p{number}",
            "guided_regex": wanted,
            "n": 3,
            "temperature": 1.2,
            "seed": number,
            "stream": stream,
        }
        with server.client() as client:
            reply = client.post("/v1/completions", json={**body, "max_tokens": 50})
        if not stream:
            return [choice["text"] for choice in reply.json()["choices"]]
        texts = ["", "", ""]
        for event in reply.text.split("\n\n"):
            if event.startswith("data: {"):
                for choice in json.loads(event.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] += choice["text"]
        return texts

    def free(number: int) -> str:
        body = {"prompt": f"p{number}", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        with server.client() as client:
            return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    alone = [free(number) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        formed = list(pool.map(ask, range(8)))
        beside = list(pool.map(free, range(4)))
    assert all(re.fullmatch(wanted, text) for texts in formed for text in texts)
    assert beside == alone
    assert [ask(number) for number in range(8)] == formed


def test_a_form_cut_by_length_says_so(server: ServerProcess) -> None:
    body = {"messages": CHAT, "structured_outputs": {"regex": "a{50}"}, "max_tokens": 5, "temperature": 0}
    with server.client() as client:
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("aaaaa", "length")


@pytest.mark.parametrize("pattern", ["(", "[a-", "(?<=x)y", "\\p{Foo}"])
def test_a_wrong_grammar_hurts_nobody_else(server: ServerProcess, pattern: str) -> None:
    body = {"prompt": "x", "max_tokens": 100, "temperature": 0, "ignore_eos": True, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as running:
        pieces = running.iter_text()
        next(pieces)
        with server.client() as other:
            refused = other.post("/v1/completions", json={"prompt": "x", "guided_regex": pattern})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "guided_regex")
        assert "".join(pieces).endswith("data: [DONE]\n\n")


def test_a_batch_line_may_want_a_form(server: ServerProcess, tmp_path: Path) -> None:
    schema = Owner.model_json_schema()
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "messages": CHAT,
            "max_tokens": 200,
            "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": {"name": "owner", "schema": schema}},
        },
    }
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as sdk:
        file = sdk.files.create(file=("in.jsonl", (json.dumps(line) + "\n").encode()), purpose="batch")
        batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        while (batch := sdk.batches.retrieve(batch.id)).status not in ("completed", "failed"):
            pass
        assert batch.output_file_id is not None
        (answer,) = sdk.files.content(batch.output_file_id).text.splitlines()
    text = json.loads(answer)["response"]["body"]["choices"][0]["message"]["content"]
    assert text.startswith('{"vip": ')
