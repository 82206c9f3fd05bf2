"""Text completion bodies: the four forms of a prompt and the limits of its output."""

from __future__ import annotations

import pytest
from tests.unit.api.byte_text import BEGIN, END, MODEL, byte_text

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Call, Endpoint
from plait.api.completions import completion_call, parse_completion
from plait.api.model_text import ModelText
from plait.core.errors import RequestError


def call_with(text: ModelText, body: JsonObject) -> Call:
    return completion_call(parse_completion(body), "cmpl-1", text, MODEL)


def call(**fields: JsonValue) -> Call:
    return call_with(byte_text(), fields)


def prompts(**fields: JsonValue) -> list[tuple[int, ...]]:
    return [request.prompt for request in call(**fields).requests]


def fault_with(text: ModelText, body: JsonObject) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call_with(text, body)
    assert caught.value.status == 400
    assert "\n" not in caught.value.message
    return caught.value


def fault_of(**fields: JsonValue) -> RequestError:
    return fault_with(byte_text(), fields)


def test_a_prompt_comes_in_four_forms() -> None:
    assert prompts(prompt="ab") == [(97, 98)]
    assert prompts(prompt=["ab", "c"]) == [(97, 98), (99,)]
    assert prompts(prompt=[97, 256]) == [(97, 256)]
    assert prompts(prompt=[[97], [98, 99]]) == [(97,), (98, 99)]


def test_each_prompt_is_a_request_of_n_choices() -> None:
    made = call(prompt=["a", "b"], n=3)
    assert made.endpoint is Endpoint.COMPLETIONS
    assert [(request.id, request.n) for request in made.requests] == [("cmpl-1-0", 3), ("cmpl-1-1", 3)]
    assert made.num_choices == 6


def test_begin_of_text_is_added_to_text_and_never_to_token_ids() -> None:
    text = byte_text(adds_begin=True)
    assert call_with(text, {"prompt": "a"}).requests[0].prompt == (BEGIN, 97)
    assert call_with(text, {"prompt": [97]}).requests[0].prompt == (97,)
    assert call_with(text, {"prompt": "a", "add_special_tokens": False}).requests[0].prompt == (97,)


def test_a_raw_prompt_may_spell_control_tokens() -> None:
    assert prompts(prompt="a<|end|>") == [(97, END)]


def test_the_empty_prompt_is_begin_of_text_alone_where_the_model_has_one() -> None:
    text = byte_text(adds_begin=True)
    assert call_with(text, {"prompt": ""}).requests[0].prompt == (BEGIN,)
    assert [request.prompt for request in call_with(text, {"prompt": ["a", ""]}).requests] == [(BEGIN, 97), (BEGIN,)]


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([""], "prompt.0"),
        (["a", ""], "prompt.1"),
        ([], "prompt"),
        ([[]], "prompt.0"),
        ([[1], []], "prompt.1"),
    ],
)
def test_the_empty_prompt_is_refused_where_the_model_has_none(prompt: JsonValue, param: str) -> None:
    assert fault_of(prompt=prompt).param == param


@pytest.mark.parametrize("prompt", [[], [[]]])
def test_a_list_without_anything_is_refused_whatever_the_model(prompt: JsonValue) -> None:
    fault_with(byte_text(adds_begin=True), {"prompt": prompt})


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        (True, "prompt"),
        ({}, "prompt"),
        ([True], "prompt.0"),
        ([1, True], "prompt.1"),
        ([1, "a"], "prompt.1"),
        (["a", 1], "prompt.1"),
        ([["a"]], "prompt.0.0"),
        ([[1.5]], "prompt.0.0"),
        ([1.5], "prompt.0"),
        ([None], "prompt.0"),
        ([-1], "prompt"),
        ([261], "prompt"),
        ([[1], [10**30]], "prompt.1"),
        ("x" * 64, "prompt"),
        (["a", "x" * 64], "prompt.1"),
        (["a"] * 2049, "prompt"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_by_its_path(prompt: JsonValue, param: str) -> None:
    assert fault_of(prompt=prompt).param == param


def test_sixteen_tokens_are_made_by_default_and_fewer_where_the_context_ends() -> None:
    assert call(prompt="a").requests[0].sampling.max_tokens == 16
    assert call(prompt="x" * 60).requests[0].sampling.max_tokens == 4


def test_each_prompt_has_its_own_room() -> None:
    limits = [request.sampling.max_tokens for request in call(prompt=["a", "x" * 60]).requests]
    assert limits == [16, 4]
    assert fault_of(prompt=["a", "x" * 60], max_tokens=5).code == "context_length_exceeded"


@pytest.mark.parametrize("value", [-1, 1.5, "8", True])
def test_max_tokens_must_be_a_positive_integer(value: JsonValue) -> None:
    assert fault_of(prompt="a", max_tokens=value).param == "max_tokens"


def test_max_tokens_zero_is_refused_where_nothing_would_be_answered() -> None:
    fault = fault_of(prompt="a", max_tokens=0)
    assert fault.param == "max_tokens"
    assert "the answer would be empty" in fault.message


def test_logprobs_are_a_number() -> None:
    assert call(prompt="a", logprobs=0).requests[0].sampling.logprobs == 0
    assert call(prompt="a", logprobs=20).requests[0].sampling.logprobs == 20
    assert call(prompt="a").requests[0].sampling.logprobs is None
    assert fault_of(prompt="a", logprobs=21).param == "logprobs"
    assert fault_of(prompt="a", logprobs=True).param == "logprobs"


def test_a_small_context_refuses_a_prompt_with_the_number_it_holds() -> None:
    fault = fault_of(prompt="x" * 64)
    assert fault.message == (
        "prompt has 64 tokens but this model's maximum context length is 64 tokens, output included; "
        "shorten it to 63 tokens or less"
    )


def test_the_requested_name_is_the_answers_name() -> None:
    named: JsonObject = {"prompt": "a", "model": "alias"}
    assert call(**named).model == "alias"
    assert call(prompt="a").model == MODEL.name
