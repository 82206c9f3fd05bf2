"""Admission: what can never be served is refused with the value, the limit and the way out; the largest is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.core.errors import RequestError
from plait.core.ids import RequestId, SeqId
from plait.core.request import Image, Request, Sequence, Task
from plait.sched.admission import refuse_impossible

LONG = 10**6
REQUEST = Request(RequestId("r"), (1, 2, 3))


def make_seq(request: Request, max_output_tokens: int = 4) -> Sequence:
    return Sequence(SeqId(0), request, 0, 0, max_output_tokens, 0.0, list(request.prompt))


def long_seq(num_prompt: int, max_output_tokens: int) -> Sequence:
    return make_seq(replace(REQUEST, prompt=(1,) * num_prompt), max_output_tokens)


def refusal(seq: Sequence, max_model_tokens: int = LONG, capacity_tokens: int = LONG) -> RequestError:
    with pytest.raises(RequestError) as caught:
        refuse_impossible(seq, max_model_tokens, capacity_tokens)
    return caught.value


@pytest.mark.parametrize(
    ("request_", "message", "param"),
    [
        (replace(REQUEST, task=Task.EMBED), "task embed is not supported", "task"),
        (replace(REQUEST, adapter="style"), "adapter 'style' is not loaded", "adapter"),
        (replace(REQUEST, images=(Image(b"cat", 0, 1),)), "reads text only", "messages"),
        (replace(REQUEST, prompt=()), "the prompt is empty", "prompt"),
    ],
)
def test_what_no_engine_of_this_kind_can_do_is_named(request_: Request, message: str, param: str) -> None:
    found = refusal(make_seq(request_))
    assert message in found.message
    assert found.param == param


@pytest.mark.parametrize(
    ("num_prompt", "max_output", "model", "capacity", "message", "param"),
    [
        (
            20,
            1,
            20,
            LONG,
            "the prompt has 20 tokens but this model holds 20, output included; shorten it to 19",
            "prompt",
        ),
        (18, 3, 20, LONG, "18 tokens and max_tokens is 3, together 21, but this model holds 20", "max_tokens"),
        (10, 7, 20, 16, "memory for 17 tokens but the cache holds 16", "max_tokens"),
        (20, 1, 20, 16, "but this model holds 20", "prompt"),
    ],
)
def test_what_is_too_long_is_refused_with_both_numbers(
    num_prompt: int, max_output: int, model: int, capacity: int, message: str, param: str
) -> None:
    found = refusal(long_seq(num_prompt, max_output), model, capacity)
    assert message in found.message
    assert (found.param, found.code) == (param, "context_length_exceeded")


def test_the_largest_that_fits_passes() -> None:
    refuse_impossible(long_seq(17, 3), 20, 20)
    refuse_impossible(long_seq(19, 1), 20, 20)


def test_keys_from_elsewhere_need_an_engine_that_takes_them() -> None:
    seq = make_seq(replace(REQUEST, prompt=(1, 2, 3), num_imported=2))
    assert "takes no keys and values from another" in refusal(seq).message
    refuse_impossible(seq, LONG, LONG, can_import=True)
