"""Scoring over HTTP: echo, max_tokens 0 and prompt_logprobs, as lm-eval and vLLM's clients ask for them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import CONTEXT, write_tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    # Steps of 32 tokens, so that prompts are scored in several.
    tiny = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with serving(tiny, "--max-num-batched-tokens", "32", "--max-num-seqs", "8") as running:
        yield running


def answer(server: ServerProcess, status: int = 200, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    with server.client() as client:
        reply = client.post(path, json={"model": "tiny", **body})
    assert reply.status_code == status, reply.text
    told: dict[str, Any] = reply.json()
    return told


def streamed(server: ServerProcess, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
    with server.client() as client:
        text = client.post(path, json={"model": "tiny", "stream": True, **body}).text
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


PROMPTS = [[7 * place % 200 for place in range(length)] for length in (12, 3, 1, 70)]
AS_LM_EVAL: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234}


def test_prompts_are_scored_as_lm_eval_asks(server: ServerProcess) -> None:
    told = answer(server, prompt=PROMPTS, **AS_LM_EVAL)
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
    for prompt, choice in zip(PROMPTS, told["choices"], strict=True):
        lists = choice["logprobs"]
        assert {len(values) for values in lists.values()} == {len(prompt) + 1}
        assert lists["token_logprobs"][0] is None
        assert lists["top_logprobs"][0] is None
        assert all(math.isfinite(value) and value <= 0 for value in lists["token_logprobs"][1:])
        for token, logprob, top in list(
            zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True)
        )[1:]:
            # lm-eval asks whether the token is the most likely one.
            assert top[token] == logprob
            assert logprob <= max(top.values())
        assert lists["text_offset"] == sorted(lists["text_offset"])
    assert told["usage"]["prompt_tokens"] == sum(map(len, PROMPTS))
    assert told["usage"]["completion_tokens"] == len(PROMPTS)


def test_a_text_has_the_scores_that_its_tokens_had_when_they_were_generated(server: ServerProcess) -> None:
    made = answer(
        server, prompt=PROMPTS[0], max_tokens=40, temperature=0, ignore_eos=True, logprobs=2, return_token_ids=True
    )["choices"][0]
    tokens = [*PROMPTS[0], *made["token_ids"]]
    scored = answer(server, prompt=tokens, max_tokens=0, echo=True, logprobs=2)
    (choice,) = scored["choices"]
    assert choice["logprobs"]["token_logprobs"][len(PROMPTS[0]) :] == made["logprobs"]["token_logprobs"]
    assert choice["logprobs"]["top_logprobs"][len(PROMPTS[0]) :] == made["logprobs"]["top_logprobs"]
    assert choice["finish_reason"] == "length"
    assert scored["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == len(tokens)


def test_an_answer_begins_with_its_prompt_and_offsets_say_where_tokens_are(server: ServerProcess) -> None:
    prompt = "Two <|user|> and é"
    alone = answer(server, prompt=prompt, max_tokens=8, temperature=0)["choices"][0]["text"]
    choice = answer(server, prompt=prompt, max_tokens=8, temperature=0, echo=True, logprobs=0)["choices"][0]
    assert choice["text"] == prompt + alone
    lists = choice["logprobs"]
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        # What a model with random weights says is hardly text.
        if offset < len(prompt) and not token.startswith("bytes:"):
            assert choice["text"][offset : offset + len(token)] == token
    assert choice["text"].index("<|user|>") == lists["text_offset"][lists["tokens"].index("<|user|>")]
    assert answer(server, prompt=prompt, max_tokens=0, echo=True)["choices"][0]["text"] == prompt


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": PROMPTS, "n": 2, "temperature": 0.8, "seed": 3, "echo": True, "logprobs": 2, "max_tokens": 9},
        {"prompt": ["some text", "more"], "echo": True, "max_tokens": 5, "temperature": 0},
        {"prompt": PROMPTS[3], "n": 3, "echo": True, "logprobs": 1, "max_tokens": 0},
        {"prompt": "some text", "prompt_logprobs": 3, "logprobs": 1, "max_tokens": 4, "temperature": 0},
        {"prompt": "text", "return_tokens_as_token_ids": True, "logprobs": 1, "echo": True, "max_tokens": 4},
    ],
)
def test_a_stream_says_the_same_as_the_answer_in_one_piece(server: ServerProcess, asked: dict[str, Any]) -> None:
    asked = {"seed": 1, **asked}
    whole = answer(server, **asked)
    chunks = streamed(server, **asked, stream_options={"include_usage": True})
    assert chunks.pop()["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == [choice["finish_reason"]]
        lists = [one["logprobs"] for one in own if one["logprobs"]]
        if choice["logprobs"] is None:
            assert lists == []
            continue
        for name, values in choice["logprobs"].items():
            assert [value for one in lists for value in one[name]] == values, name
        if "prompt_logprobs" in choice:
            assert [one["prompt_logprobs"] for one in own if "prompt_logprobs" in one] == [choice["prompt_logprobs"]]


def test_prompt_logprobs_have_the_shape_of_vllm(server: ServerProcess) -> None:
    tokens = PROMPTS[0]
    told = answer(server, prompt=tokens, prompt_logprobs=2, max_tokens=1)["choices"][0]["prompt_logprobs"]
    echoed = answer(server, prompt=tokens, **AS_LM_EVAL)["choices"][0]["logprobs"]["token_logprobs"]
    assert told[0] is None
    for token, entry, logprob in zip(tokens[1:], told[1:], echoed[1:-1], strict=True):
        first = next(iter(entry))
        assert first == str(token)
        assert entry[first]["logprob"] == logprob
        assert sorted(entry[first]) == ["decoded_token", "logprob", "rank"]
        assert sorted(one["rank"] for one in entry.values() if one["rank"] is not None)[:2] == [1, 2]


def test_a_chat_tells_the_scores_of_its_prompt_too(server: ServerProcess) -> None:
    asked = {
        "messages": [{"role": "user", "content": "Hi"}],
        "prompt_logprobs": 1,
        "max_tokens": 3,
        "temperature": 0,
        "return_token_ids": True,
    }
    whole = answer(server, path="/v1/chat/completions", **asked)
    assert len(whole["prompt_logprobs"]) == len(whole["prompt_token_ids"])
    first = streamed(server, path="/v1/chat/completions", **asked)[0]
    assert first["prompt_logprobs"] == whole["prompt_logprobs"]


def test_scores_are_the_same_whether_the_prompt_was_seen_before(server: ServerProcess) -> None:
    asked = {"prompt": PROMPTS[3], **AS_LM_EVAL}
    first, again = answer(server, **asked), answer(server, **asked)
    assert first["choices"] == again["choices"]
    assert answer(server, prompt=PROMPTS[3], max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_what_cannot_be_scored_is_refused_by_name(server: ServerProcess) -> None:
    for body, param in (
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "a", "echo": "yes"}, "echo"),
        ({"prompt": [5, 100_000], "echo": True}, "prompt"),
        ({"prompt": [5] * CONTEXT, **AS_LM_EVAL}, "prompt"),
    ):
        assert answer(server, 400, **body)["error"]["param"] == param, body
    chat = {"messages": [{"role": "user", "content": "Hi"}], "echo": True}
    assert answer(server, 400, path="/v1/chat/completions", **chat)["error"]["param"] == "echo"
    assert server.become_idle()


def test_a_long_prompt_is_cut_only_when_asked(server: ServerProcess) -> None:
    tokens = [place % 200 for place in range(CONTEXT + 50)]
    assert answer(server, 400, prompt=tokens, max_tokens=4)["error"]["code"] == "context_length_exceeded"
    for fields, wanted in (
        ({"truncate_prompt_tokens": 20}, tokens[-20:]),
        ({"truncate_prompt_tokens": 20, "truncation_side": "right"}, tokens[:20]),
        ({"truncate_prompt_tokens": -1}, tokens[-(CONTEXT - 4) :]),
    ):
        told = answer(server, prompt=tokens, max_tokens=4, return_token_ids=True, **fields)
        assert told["usage"]["prompt_tokens"] == len(wanted)
        assert told["choices"][0]["prompt_token_ids"] == wanted
    assert answer(server, 400, prompt="a", truncate_prompt_tokens=0)["error"]["param"] == "truncate_prompt_tokens"


def test_an_answer_goes_on_with_the_last_message(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    asked = {"messages": messages, "max_tokens": 3, "return_token_ids": True, "temperature": 0}
    told = answer(server, path="/v1/chat/completions", continue_final_message=True, **asked)
    with server.client() as client:
        spelled = client.post("/detokenize", json={"tokens": told["prompt_token_ids"]}).json()["prompt"]
    assert spelled.endswith("<|assistant|>Well,")
    both = answer(server, 400, "/v1/chat/completions", continue_final_message=True, add_generation_prompt=True, **asked)
    assert both["error"]["param"] == "add_generation_prompt"
    documents = answer(server, 400, "/v1/chat/completions", documents=[{"text": "A"}], **asked)
    assert documents["error"]["param"] == "documents"
