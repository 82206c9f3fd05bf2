"""Sampling parameters: vLLM's names, order and defaults; what the engine does not have is refused, never ignored."""

from __future__ import annotations

from dataclasses import fields

import pytest

from plait import InputError, PlaitError, RequestOutputKind, SamplingParams, StructuredOutputsParams
from plait.core.sampling import SamplingParams as CoreSampling
from plait.llm.sampling_params import _REFUSALS
from plait.text.grammar import GrammarKind

HONOURED = {
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.5,
    "seed": 5,
    "stop": ["x"],
    "stop_token_ids": [5],
    "ignore_eos": True,
    "max_tokens": 5,
    "min_tokens": 5,
    "logprobs": 5,
    "prompt_logprobs": 5,
    "detokenize": False,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "output_kind": RequestOutputKind.DELTA,
    "logit_bias": {5: 1.0},
    "allowed_token_ids": [5],
    "skip_reading_prefix_cache": True,
    "structured_outputs": StructuredOutputsParams(regex="a+"),
}


def test_the_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens) == (1, 1.0, 1.0, 0, 16)
    assert (params.min_tokens, params.logprobs, params.seed, params.stop) == (0, None, None, None)


def test_positions_are_those_of_vllm() -> None:
    params = SamplingParams(2, 0.1, 0.2, 1.1, 0.7, 0.9, 40, 0.05, 7, ["x"], [3], True, 9, 4, 5)
    assert params.core(9) == CoreSampling(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=7,
        max_tokens=9,
        min_tokens=4,
        stop=("x",),
        stop_token_ids=(3,),
        ignore_eos=True,
        logprobs=5,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.1,
    )
    assert params.n == 2


def test_every_field_is_honoured_or_refused() -> None:
    assert {field.name for field in fields(SamplingParams)} == {*HONOURED, *_REFUSALS}


@pytest.mark.parametrize("name", _REFUSALS)
def test_what_the_engine_does_not_have_is_refused_by_name(name: str) -> None:
    default = getattr(SamplingParams(), name)
    asked: object = (not default) if isinstance(default, bool) else 3
    with pytest.raises(InputError, match=f"^{name} is {asked!r}; "):
        SamplingParams(**{name: asked})  # type: ignore[arg-type]
    SamplingParams(**{name: default})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n", 0, r"n is 0; it must lie in \[1, 128\]"),
        ("temperature", 2.5, r"temperature is 2.5; it must lie in \[0, 2\]"),
        ("temperature", "hot", "temperature is 'hot'; it must be a number"),
        ("temperature", float("nan"), "temperature is nan"),
        ("temperature", True, "temperature is True; it must be a number"),
        ("top_p", 0, r"top_p is 0.0; it must lie in \(0, 1\]"),
        ("top_k", -2, "top_k is -2; it must be at least 1, or 0 or -1 to keep every token"),
        ("top_k", 1.5, "top_k is 1.5; it must be an integer"),
        ("max_tokens", 0, "max_tokens is 0; it must be at least 1"),
        ("min_tokens", 20, "min_tokens is 20 but max_tokens is 16"),
        ("logprobs", -1, r"logprobs is -1; it must lie in \[0, 20\]"),
        ("prompt_logprobs", 21, r"prompt_logprobs is 21; it must lie in \[0, 20\]"),
        ("logprobs", 21, r"logprobs is 21; it must lie in \[0, 20\]"),
        ("stop", [3], "stop holds 3; it must be a string"),
        ("stop", "", "stop holds an empty string"),
        ("stop_token_ids", ["x"], "stop_token_ids holds 'x'"),
        ("logit_bias", {"5": 1.0}, "logit_bias holds '5': 1.0; it maps token ids to numbers"),
        ("logit_bias", {5: 200.0}, "logit_bias is 200.0"),
        ("ignore_eos", 1, "ignore_eos is 1; it must be True or False"),
        ("allowed_token_ids", [], "allowed_token_ids is empty"),
        ("allowed_token_ids", [1.5], "allowed_token_ids holds 1.5"),
        ("seed", 1 << 70, "it must lie between -2"),
    ],
)
def test_a_value_out_of_range_is_one_line_that_names_it(name: str, value: object, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_errors_are_what_programs_catch() -> None:
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=-1)
    assert issubclass(InputError, PlaitError)


def test_stops_may_be_one_string_and_are_found_in_text() -> None:
    assert SamplingParams(stop="end").core(16).stop == ("end",)
    with pytest.raises(InputError, match="detokenize is False"):
        SamplingParams(stop="end", detokenize=False)


def test_minus_one_asks_for_nothing_as_in_vllm() -> None:
    core = SamplingParams(top_k=-1, seed=-1).core(16)
    assert (core.top_k, core.seed) == (0, None)


def test_parameters_may_be_changed_and_copied_and_show_what_was_said() -> None:
    params = SamplingParams(temperature=0.8)
    copy = params.clone()
    params.max_tokens = 3
    assert copy.max_tokens == 16
    assert repr(params) == "SamplingParams(temperature=0.8, max_tokens=3)"


def test_a_bad_change_is_found_before_it_is_used() -> None:
    params = SamplingParams()
    params.temperature = -1
    with pytest.raises(InputError, match="temperature is -1"):
        params.verify()


def test_a_form_is_read_as_in_a_body_and_one_that_is_none_is_refused() -> None:
    form = StructuredOutputsParams(json={"type": "integer"}).form()
    assert (form.kind, form.text) == (GrammarKind.JSON_SCHEMA, '{"type":"integer"}')
    assert StructuredOutputsParams(choice=("a", "b")).form().text == '["a","b"]'
    for wrong in (StructuredOutputsParams(), StructuredOutputsParams(json={"a": {1}}), "json"):
        with pytest.raises(InputError):
            SamplingParams(structured_outputs=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="leave one out"):
        SamplingParams(structured_outputs=StructuredOutputsParams(regex="a", choice=["b"]))
