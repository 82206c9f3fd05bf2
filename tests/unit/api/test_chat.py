"""Chat bodies: every field honoured, refused by name or known to be ignorable."""

from __future__ import annotations

import pytest
from tests.unit.api.byte_text import ASSISTANT, END, MODEL, USER, byte_text

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Endpoint
from plait.api.chat import ChatBody, chat_call, parse_chat
from plait.api.model_text import ModelText
from plait.core.errors import RequestError
from plait.core.request import Request, ServiceClass
from plait.core.sampling import SamplingParams


def body_of(**fields: JsonValue) -> JsonObject:
    return {"model": "byte-model", "messages": [{"role": "user", "content": "hi"}], **fields}


def parsed(**fields: JsonValue) -> ChatBody:
    return parse_chat(body_of(**fields))


def sampling(**fields: JsonValue) -> SamplingParams:
    return parsed(**fields).generation.sampling


def request_of(text: ModelText, body: JsonObject) -> Request:
    return chat_call(parse_chat(body), "chatcmpl-1", text, MODEL).requests[0]


def request(**fields: JsonValue) -> Request:
    return request_of(byte_text(), body_of(**fields))


def fault_of(**fields: JsonValue) -> RequestError:
    """The fault of a body, found while parsing it or while making requests of it."""
    with pytest.raises(RequestError) as caught:
        request(**fields)
    assert caught.value.status == 400
    assert "\n" not in caught.value.message
    assert "Input should" not in caught.value.message
    return caught.value


def test_a_plain_body_becomes_one_request_with_the_defaults_of_the_openai_api() -> None:
    call = chat_call(parsed(), "chatcmpl-1", byte_text(), MODEL)
    assert (call.endpoint, call.id, call.model, call.num_choices) == (Endpoint.CHAT, "chatcmpl-1", "byte-model", 1)
    only = call.requests[0]
    assert only.prompt == (USER, *b"hi", END, ASSISTANT)
    assert only.sampling == SamplingParams()
    assert only.sampling.max_tokens is None
    assert only.service_class is ServiceClass.ONLINE


def test_every_supported_field_reaches_the_request() -> None:
    made = request(
        n=3,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=-(2**63),
        max_tokens=7,
        min_tokens=2,
        stop=["\n", "END"],
        stop_token_ids=[65],
        ignore_eos=True,
        include_stop_str_in_output=True,
        logprobs=True,
        top_logprobs=4,
        repetition_penalty=1.1,
        frequency_penalty=-0.5,
        presence_penalty=0.25,
        logit_bias={"70": 3, "65": -100},
        allowed_token_ids=[70, 65, 1],
        skip_special_tokens=False,
        cache_salt="team a",
        priority=-3,
        service_tier="flex",
    )
    assert made.n == 3
    assert made.tenant == "team a"
    assert made.priority == -3
    assert made.service_class is ServiceClass.BATCH
    assert made.sampling == SamplingParams(
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        seed=-(2**63),
        max_tokens=7,
        min_tokens=2,
        stop=("\n", "END"),
        stop_token_ids=(65,),
        ignore_eos=True,
        include_stop=True,
        logprobs=4,
        repetition_penalty=1.1,
        frequency_penalty=-0.5,
        presence_penalty=0.25,
        logit_bias=((65, -100.0), (70, 3.0)),
        allowed_token_ids=(70, 65, 1),
        skip_special_tokens=False,
    )


def test_null_means_absent_for_every_field() -> None:
    nulls: JsonObject = dict.fromkeys(
        [
            "n",
            "temperature",
            "top_p",
            "top_k",
            "seed",
            "max_tokens",
            "max_completion_tokens",
            "stop",
            "logprobs",
            "top_logprobs",
            "tools",
            "tool_choice",
            "response_format",
            "logit_bias",
            "stream",
            "stream_options",
            "priority",
            "service_tier",
            "modalities",
            "chat_template_kwargs",
        ]
    )
    assert parsed(**nulls) == parsed()


def test_unknown_and_ignorable_fields_are_ignored() -> None:
    assert parsed(frobnicate=1, user=7, metadata={"a": "b"}, store=True, verbosity="low", prediction={}) == parsed()


def test_absent_sampling_fields_take_the_defaults_that_the_caller_brings() -> None:
    defaults = SamplingParams(temperature=0.2, top_k=50, max_tokens=9)
    made = parse_chat(body_of(top_k=0), defaults).generation.sampling
    assert (made.temperature, made.top_k, made.max_tokens) == (0.2, 0, 9)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert sampling(max_tokens=5, max_completion_tokens=3).max_tokens == 3
    assert sampling(max_tokens=0, max_completion_tokens=3).max_tokens == 3
    assert fault_of(max_tokens=3, max_completion_tokens=0).param == "max_completion_tokens"


@pytest.mark.parametrize("value", [-1, 0, 1.5, "8", True, [], 8.5, 10**4000])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_output_limit_must_be_a_positive_integer(field: str, value: JsonValue) -> None:
    fields: JsonObject = {field: value}
    assert fault_of(**fields).param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.5),
        ("min_p", 2),
        ("n", 0),
        ("n", 129),
        ("n", "2"),
        ("best_of", 2),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 1.5),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
        ("repetition_penalty", 0),
        ("min_tokens", -1),
        ("ignore_eos", 1),
        ("stream", "yes"),
        ("stop", 5),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["x"] * 17),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [261]),
        ("allowed_token_ids", [261]),
        ("allowed_token_ids", ["a"]),
        ("logit_bias", {"foo": 0}),
        ("logit_bias", {"1_0": 0}),
        ("logit_bias", {"٣": 0}),
        ("logit_bias", {"261": 0}),
        ("logit_bias", {"9" * 30: 0}),
        ("logit_bias", {"65": 101}),
        ("logit_bias", [1]),
        ("service_tier", "gold"),
        ("priority", 2**31),
        ("cache_salt", 5),
        ("model", 5),
        ("chat_template_kwargs", "x"),
        ("add_special_tokens", True),
        ("reasoning_effort", 3),
        ("stream_options", "x"),
    ],
)
def test_a_wrong_value_is_refused_under_the_name_of_its_field(field: str, value: JsonValue) -> None:
    fields: JsonObject = {field: value}
    fault = fault_of(**fields)
    assert fault.param is not None
    assert fault.param.split(".")[0] == field
    assert fault.param.split(".")[0] in fault.message


def test_a_fault_inside_a_list_or_object_is_refused_by_its_path() -> None:
    assert fault_of(stop=["a", 1]).param == "stop.1"
    assert fault_of(stop_token_ids=[1, "a"]).param == "stop_token_ids.1"
    assert fault_of(logit_bias={"65": "x"}).param == "logit_bias.65"
    assert fault_of(stream_options={"include_usage": 1}).param == "stream_options.include_usage"


def test_a_message_says_value_kind_and_what_is_wanted() -> None:
    assert fault_of(max_tokens="8").message == 'max_tokens is "8" (a string); it must be an integer'
    assert fault_of(n=129).message == "n is 129; it must lie in [1, 128]"
    assert '"auto", "default", "flex"' in fault_of(service_tier="gold").message


def test_both_ways_to_switch_top_k_off_work() -> None:
    assert sampling(top_k=-1).top_k == 0
    assert sampling(top_k=0).top_k == 0


@pytest.mark.parametrize("temperature", [0, 1e-3, 1e-5, 1e-8, 1e-12, 1e-45, 2])
def test_temperatures_down_to_zero_are_accepted(temperature: float) -> None:
    assert request(temperature=temperature).sampling.temperature == temperature


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1, -9007199254740991, 0])
def test_every_seed_of_64_bits_is_accepted(seed: int) -> None:
    assert request(seed=seed).sampling.seed == seed


def test_logprobs_alone_report_the_chosen_tokens() -> None:
    assert sampling(logprobs=True).logprobs == 0
    assert sampling(logprobs=True, top_logprobs=0).logprobs == 0
    assert sampling(logprobs=True, top_logprobs=20).logprobs == 20
    assert sampling(logprobs=False).logprobs is None
    assert sampling(top_logprobs=0).logprobs is None


@pytest.mark.parametrize(
    "fields", [{"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}]
)
def test_top_logprobs_need_logprobs_and_have_a_limit(fields: JsonObject) -> None:
    assert fault_of(**fields).param == "top_logprobs"


def test_logprobs_of_a_chat_are_yes_or_no() -> None:
    assert fault_of(logprobs=3).param == "logprobs"


def test_the_template_gets_its_variables_and_nothing_that_is_ours() -> None:
    made = request(chat_template_kwargs={"thinking": False}, reasoning_effort="low")
    assert made.prompt == (USER, *b"hi", END, *b"False", *b"low", ASSISTANT)
    assert fault_of(chat_template_kwargs={"messages": []}).param == "chat_template_kwargs.messages"
    deep: JsonValue = []
    for _ in range(200):
        deep = [deep]
    fault = fault_of(chat_template_kwargs={"thinking": deep})
    assert fault.param == "chat_template_kwargs.thinking"
    assert fault.message.startswith("chat_template_kwargs.thinking is nested more than 100 levels deep")


def test_the_generation_prompt_can_be_left_out() -> None:
    assert request(add_generation_prompt=False).prompt == (USER, *b"hi", END)


def test_stream_and_its_options_are_reported_to_the_transport() -> None:
    asked = parsed(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}).generation
    assert (asked.stream, asked.include_usage, asked.continuous_usage) == (True, True, True)


@pytest.mark.parametrize("options", [{}, {"include_usage": True, "include_obfuscation": False}])
def test_stream_options_without_a_stream_hurt_nobody(options: JsonValue) -> None:
    assert not parsed(stream=False, stream_options=options).generation.stream


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    assert len(request(messages=[{"role": "user", "content": "x" * 60}]).prompt) == 63
    fault = fault_of(messages=[{"role": "user", "content": "x" * 61}])
    assert (fault.code, fault.param) == ("context_length_exceeded", "messages")
    assert "64 tokens" in fault.message
    assert "length is 64" in fault.message


def test_an_explicit_limit_beyond_the_context_is_refused_with_the_way_out() -> None:
    fault = fault_of(max_completion_tokens=60)
    assert (fault.code, fault.param) == ("context_length_exceeded", "max_completion_tokens")
    assert fault.message == (
        "messages has 5 tokens and max_completion_tokens asks for 60, together 65, but this model's maximum "
        "context length is 64 tokens; "
        "lower max_completion_tokens to 59 or shorten the prompt"
    )
    assert request(max_completion_tokens=59).sampling.max_tokens == 59
    assert fault_of(max_tokens=10**9).code == "context_length_exceeded"


def test_min_tokens_above_max_tokens_is_refused() -> None:
    assert fault_of(min_tokens=5, max_tokens=4).param == "min_tokens"


def test_a_model_without_a_template_cannot_chat() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        request_of(byte_text(has_template=False), body_of())
