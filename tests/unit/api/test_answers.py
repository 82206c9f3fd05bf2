"""Deltas folded into response objects: both shapes, usage, failures."""

from __future__ import annotations

import json

import pytest
from tests.unit.api.byte_text import ASSISTANT, END, MODEL, USER, byte_text

from plait.api.answers import Answer, Usage
from plait.api.bodies import JsonObject, JsonValue, write_line
from plait.api.chat import chat_call, parse_chat
from plait.api.completions import completion_call, parse_completion
from plait.core.client import Delta
from plait.core.errors import InvariantError
from plait.core.request import FinishReason
from plait.core.step import TokenLogprob

TEXT = byte_text()


def chat(**fields: JsonValue) -> Answer:
    body = parse_chat({"messages": [{"role": "user", "content": "hi"}], **fields})
    return Answer(chat_call(body, "chatcmpl-1", TEXT, MODEL), TEXT.tokenizer, created=1_700_000_000)


def completion(**fields: JsonValue) -> Answer:
    call = completion_call(parse_completion(fields), "cmpl-1", TEXT, MODEL)
    return Answer(call, TEXT.tokenizer, created=1_700_000_000)


def said(
    text: str,
    *,
    choice: int = 0,
    finish: FinishReason | None = None,
    cached: int = 0,
    seed: int = 0,
    ends: bool = False,
) -> Delta:
    """A delta whose tokens are the bytes of its text, with an end-of-sequence token behind them if it `ends`."""
    tokens = (*text.encode(), *([END] if ends else []))
    return Delta(choice, text, tokens, finish_reason=finish, num_prompt=5, num_cached=cached, seed=seed)


def test_a_chat_answer_is_the_openai_object() -> None:
    answer = chat(temperature=0)
    answer.add(0, said("Hel", cached=3))
    answer.add(0, said("lo", finish=FinishReason.STOP, cached=3, ends=True))
    assert answer.body() == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "byte-model",
        "system_fingerprint": "fp-1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 6,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


def test_a_completion_answer_is_the_openai_object() -> None:
    answer = completion(prompt="ab", model="alias", temperature=0)
    answer.add(0, said("cd", finish=FinishReason.LENGTH))
    body = answer.body()
    assert (body["object"], body["model"], body["id"]) == ("text_completion", "alias", "cmpl-1")
    assert body["choices"] == [
        {"index": 0, "text": "cd", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]


def choices_of(answer: Answer) -> list[JsonObject]:
    """The choices as a client reads them: written as JSON and read again."""
    choices: list[JsonObject] = json.loads(write_line(answer.body()))["choices"]
    return choices


def test_choices_are_numbered_by_prompt_then_by_choice() -> None:
    answer = completion(prompt=["a", "b"], n=2, temperature=0)
    for prompt, choice in [(1, 1), (0, 1), (1, 0), (0, 0)]:
        answer.add(prompt, said(f"{prompt}{choice}", choice=choice, finish=FinishReason.STOP))
    assert [(choice["index"], choice["text"]) for choice in choices_of(answer)] == [
        (0, "00"),
        (1, "01"),
        (2, "10"),
        (3, "11"),
    ]


def test_usage_counts_each_prompt_once_and_only_what_the_first_choice_found_cached() -> None:
    answer = completion(prompt=["abc", "de"], n=2)
    answer.add(0, said("x", choice=0, finish=FinishReason.STOP, cached=1))
    answer.add(0, said("x", choice=1, finish=FinishReason.STOP, cached=3))
    answer.add(1, said("yz", choice=0, finish=FinishReason.STOP))
    answer.add(1, said("y", choice=1, finish=FinishReason.STOP, cached=2))
    assert answer.usage() == Usage(prompt_tokens=5, cached_tokens=1, output_tokens=5)


def test_the_seed_in_force_is_told_where_it_matters() -> None:
    sampled = chat(temperature=1)
    sampled.add(0, said("x", finish=FinishReason.STOP, seed=42))
    greedy = chat(temperature=0)
    greedy.add(0, said("x", finish=FinishReason.STOP, seed=42))
    assert choices_of(sampled)[0]["seed"] == 42
    assert "seed" not in choices_of(greedy)[0]


@pytest.mark.parametrize(("asked", "told"), [("default", "default"), ("fast", "priority"), ("ultrafast", "priority")])
def test_a_stop_string_is_reported_and_a_service_tier_told_as_openai_does(asked: str, told: str) -> None:
    answer = chat(stop="\n", service_tier=asked)
    answer.add(0, Delta(0, "x", (120, 10), finish_reason=FinishReason.STOP, stop_reason="\n"))
    assert choices_of(answer)[0]["stop_reason"] == "\n"
    assert answer.body()["service_tier"] == told


def test_token_ids_are_returned_on_request() -> None:
    answer = chat(return_token_ids=True)
    answer.add(0, said("x", finish=FinishReason.STOP, ends=True))
    assert choices_of(answer)[0]["token_ids"] == [120, END]
    assert answer.body()["prompt_token_ids"] == [USER, *b"hi", END, ASSISTANT]
    listed = completion(prompt=["ab", "c"], return_token_ids=True)
    for prompt in (0, 1):
        listed.add(prompt, said("x", finish=FinishReason.STOP))
    assert [choice["prompt_token_ids"] for choice in choices_of(listed)] == [[97, 98], [99]]


def test_chat_logprobs_have_one_entry_per_token_with_true_bytes() -> None:
    answer = chat(logprobs=True, top_logprobs=1)
    entries = (
        TokenLogprob(0xC3, -0.5, ((0xC3, -0.5),)),
        TokenLogprob(0xBC, float("-inf"), ((65, float("nan")),)),
    )
    answer.add(0, Delta(0, "ü", (0xC3, 0xBC), entries, FinishReason.STOP))
    assert choices_of(answer)[0]["logprobs"] == {
        "content": [
            {
                "token": "bytes:\\xc3",
                "logprob": -0.5,
                "bytes": [0xC3],
                "top_logprobs": [{"token": "bytes:\\xc3", "logprob": -0.5, "bytes": [0xC3]}],
            },
            {
                "token": "bytes:\\xbc",
                "logprob": -9999.0,
                "bytes": [0xBC],
                "top_logprobs": [{"token": "A", "logprob": -9999.0, "bytes": [65]}],
            },
        ],
        "refusal": None,
    }


def test_completion_logprobs_are_parallel_lists_with_the_chosen_token_among_the_alternatives() -> None:
    answer = completion(prompt="a", logprobs=1)
    entries = (TokenLogprob(120, -0.25, ((120, -0.25),)), TokenLogprob(121, -2.0, ((65, -0.125),)))
    answer.add(0, Delta(0, "xy", (120, 121), entries, FinishReason.STOP))
    assert choices_of(answer)[0]["logprobs"] == {
        "tokens": ["x", "y"],
        "token_logprobs": [-0.25, -2.0],
        "top_logprobs": [{"x": -0.25}, {"A": -0.125, "y": -2.0}],
        "text_offset": [0, 1],
    }


def test_logprobs_of_zero_report_the_chosen_tokens_alone() -> None:
    answer = completion(prompt="a", logprobs=0)
    answer.add(0, Delta(0, "x", (120,), (TokenLogprob(120, -0.25),), FinishReason.STOP))
    assert choices_of(answer)[0]["logprobs"] == {
        "tokens": ["x"],
        "token_logprobs": [-0.25],
        "top_logprobs": [{"x": -0.25}],
        "text_offset": [0],
    }


def test_a_failed_choice_is_the_failure_of_the_answer() -> None:
    answer = completion(prompt="a", n=2)
    answer.add(0, said("x", choice=0, finish=FinishReason.STOP))
    before = answer.failure
    answer.add(0, Delta(1, "", (), finish_reason=FinishReason.ERROR, error="step 7 failed"))
    assert (before, answer.failure) == (None, "step 7 failed")
    assert answer.is_complete
    with pytest.raises(InvariantError):
        answer.body()


def test_an_aborted_or_unfinished_answer_is_never_read() -> None:
    aborted = chat()
    aborted.add(0, said("x", finish=FinishReason.ABORT))
    assert aborted.is_aborted
    unfinished = chat()
    unfinished.add(0, said("x"))
    for answer in (aborted, unfinished):
        with pytest.raises(InvariantError):
            answer.body()


def test_a_delta_after_the_end_is_our_fault() -> None:
    answer = chat()
    answer.add(0, said("x", finish=FinishReason.STOP))
    with pytest.raises(InvariantError, match="after choice 0 had finished"):
        answer.add(0, said("y"))
