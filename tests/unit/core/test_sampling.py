"""Limits of sampling parameters: what lies just inside passes, what lies just outside is refused by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import RequestError
from plait.core.sampling import (
    GREEDY_BELOW,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    SEED_LIMIT,
    SamplingParams,
)

VOCAB = 100
PLAIN = SamplingParams()
HUGE = 10**400
"""An integer that no float can hold: a comparison must not turn it into one."""


def params(name: str, value: float) -> SamplingParams:
    """The defaults with one field changed."""
    return replace(PLAIN, **{name: value})  # type: ignore[arg-type]


def refusal(given: SamplingParams) -> RequestError:
    with pytest.raises(RequestError) as caught:
        given.validate(VOCAB)
    assert caught.value.message.count("\n") == 0
    return caught.value


def test_the_defaults_are_valid() -> None:
    PLAIN.validate(VOCAB)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", [0.0, 2.0], [-1e-9, 2.0000001]),
        ("top_p", [1e-9, 1.0], [0.0, -0.1, 1.0000001]),
        ("min_p", [0.0, 1.0], [-1e-9, 1.0000001]),
        ("frequency_penalty", [-2.0, 2.0], [-2.0000001, 2.0000001]),
        ("presence_penalty", [-2.0, 2.0], [-2.0000001, 2.0000001]),
        ("repetition_penalty", [1e-6, 1e6], [0.0, -1.0, 5e-324, 9e-7, 1e6 + 1]),
        ("top_k", [0, 1, 10**9], [-1]),
        ("min_tokens", [0, 10**9], [-1]),
        ("max_tokens", [1, 10**9], [0, -1]),
        ("seed", [-SEED_LIMIT, SEED_LIMIT - 1], [-SEED_LIMIT - 1, SEED_LIMIT]),
    ],
)
def test_limits_are_where_they_are_said_to_be(name: str, inside: list[float], outside: list[float]) -> None:
    for value in inside:
        params(name, value).validate(VOCAB)
    for value in outside:
        error = refusal(params(name, value))
        assert error.param == name
        assert error.message.startswith(f"{name} is {value}; it must ")
        assert error.status == 400


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, HUGE, -HUGE])
def test_what_is_no_finite_number_is_refused(name: str, value: float) -> None:
    assert refusal(params(name, value)).param == name


def test_alternatives_are_limited_under_the_name_that_clients_use() -> None:
    replace(PLAIN, logprobs=0).validate(VOCAB)
    replace(PLAIN, logprobs=MAX_LOGPROBS).validate(VOCAB)
    assert refusal(replace(PLAIN, logprobs=MAX_LOGPROBS + 1)).message == "top_logprobs is 21; it must lie in [0, 20]"
    assert refusal(replace(PLAIN, logprobs=-1)).param == "top_logprobs"


def test_the_open_end_of_a_range_shows_in_the_message() -> None:
    assert refusal(replace(PLAIN, top_p=0.0)).message == "top_p is 0.0; it must lie in (0, 1]"
    assert refusal(replace(PLAIN, temperature=3.0)).message == "temperature is 3.0; it must lie in [0, 2]"


def test_fewer_tokens_at_most_than_at_least_is_a_contradiction() -> None:
    replace(PLAIN, min_tokens=5, max_tokens=5).validate(VOCAB)
    error = refusal(replace(PLAIN, min_tokens=6, max_tokens=5))
    assert error.message == "min_tokens is 6 but max_tokens is 5; lower min_tokens"
    replace(PLAIN, min_tokens=6).validate(VOCAB)


def test_stop_strings_are_few_and_not_empty() -> None:
    replace(PLAIN, stop=("x",) * MAX_STOPS).validate(VOCAB)
    assert refusal(replace(PLAIN, stop=("x",) * (MAX_STOPS + 1))).message.startswith("stop has 17 strings; at most 16")
    assert "an empty string" in refusal(replace(PLAIN, stop=("a", ""))).message


def test_what_every_token_is_compared_with_is_limited() -> None:
    replace(PLAIN, stop=("x" * 4000, "y" * 96), stop_token_ids=(1,) * MAX_STOP_TOKEN_IDS).validate(VOCAB)
    long = refusal(replace(PLAIN, stop=("x" * 4000, "y" * 97)))
    assert long.message == "the stop strings have 4097 characters together; at most 4096 are allowed"
    many = refusal(replace(PLAIN, stop_token_ids=(1,) * (MAX_STOP_TOKEN_IDS + 1)))
    assert many.message == "stop_token_ids has 1025 ids; at most 1024 are allowed"


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_token_ids_outside_the_vocabulary_are_named(token: int) -> None:
    stops = refusal(replace(PLAIN, stop_token_ids=(0, token)))
    assert stops.message == f"stop_token_ids holds token {token}; this model's ids go from 0 to 99"
    bias = refusal(replace(PLAIN, logit_bias=((token, 0.0),)))
    assert (bias.param, f"token {token}" in bias.message) == ("logit_bias", True)


def test_token_ids_at_both_ends_of_the_vocabulary_are_fine() -> None:
    replace(PLAIN, stop_token_ids=(0, VOCAB - 1), logit_bias=((0, -100.0), (VOCAB - 1, 100.0))).validate(VOCAB)


@pytest.mark.parametrize("bias", [-100.1, 100.1, math.nan, math.inf])
def test_a_bias_is_limited(bias: float) -> None:
    assert refusal(replace(PLAIN, logit_bias=((3, bias),))).param == "logit_bias"


@pytest.mark.parametrize("pairs", [((5, 1.0), (5, 1.0)), ((5, 1.0), (4, 1.0))])
def test_biased_tokens_ascend_so_that_equal_requests_are_equal_values(pairs: tuple[tuple[int, float], ...]) -> None:
    error = refusal(replace(PLAIN, logit_bias=pairs))
    assert error.message == f"logit_bias names token {pairs[1][0]} behind token 5; name each token once, ascending"


def test_tiny_temperatures_are_greedy() -> None:
    assert replace(PLAIN, temperature=0.0).is_greedy
    assert replace(PLAIN, temperature=GREEDY_BELOW).is_greedy
    assert not replace(PLAIN, temperature=GREEDY_BELOW * 2).is_greedy


@pytest.mark.parametrize(
    ("name", "value"), [("repetition_penalty", 1.1), ("frequency_penalty", 0.1), ("presence_penalty", -0.1)]
)
def test_any_penalty_needs_the_history(name: str, value: float) -> None:
    assert not PLAIN.has_penalties
    assert params(name, value).has_penalties


NUMBERS = st.one_of(st.floats(), st.integers(-(10**30), 10**30), st.sampled_from([HUGE, -HUGE, 0, 1, -0.0]))
COUNTS = st.one_of(st.integers(-3, 30), st.sampled_from([HUGE, -HUGE, 2**63, -(2**63)]))
TOKENS = st.one_of(st.integers(-2, VOCAB + 2), st.just(HUGE))


@given(
    temperature=NUMBERS,
    top_p=NUMBERS,
    frequency_penalty=NUMBERS,
    top_k=COUNTS,
    max_tokens=st.none() | COUNTS,
    min_tokens=COUNTS,
    seed=st.none() | COUNTS,
    logprobs=st.none() | COUNTS,
    stop=st.lists(st.sampled_from(["", "a", "ä"]), max_size=18).map(tuple),
    stop_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
    logit_bias=st.lists(st.tuples(TOKENS, NUMBERS), max_size=3).map(tuple),
)
def test_whatever_comes_is_valid_or_refused_in_one_line(**fields: object) -> None:
    given_params = SamplingParams(**fields)  # type: ignore[arg-type]
    try:
        given_params.validate(VOCAB)
    except RequestError as error:
        refused = error
    else:
        assert 0 <= given_params.temperature <= 2
        assert 0 < given_params.top_p <= 1
        assert given_params.max_tokens is None or given_params.max_tokens >= 1
        assert all(0 <= token < VOCAB for token in given_params.stop_token_ids)
        return
    assert refused.param is not None
    assert "\n" not in refused.message
