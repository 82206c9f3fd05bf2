"""Requests are values that can be checked whole; a sequence's counts follow from its tokens."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import pytest

from plait.core.errors import RequestError
from plait.core.ids import RequestId, SeqId
from plait.core.request import MAX_CHOICES, FinishReason, Request, Sequence, ServiceClass, Task
from plait.core.sampling import SamplingParams

REQUEST = Request(RequestId("r"), (1, 2, 3))


def refusal(**changes: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        replace(REQUEST, **changes).validate(vocab_size=10)  # type: ignore[arg-type]
    return caught.value


def test_a_plain_request_is_valid() -> None:
    REQUEST.validate(10)
    replace(REQUEST, prompt=()).validate(10)


@pytest.mark.parametrize("n", [0, -1, MAX_CHOICES + 1, 10**30])
def test_the_number_of_choices_is_limited(n: int) -> None:
    replace(REQUEST, n=MAX_CHOICES).validate(10)
    error = refusal(n=n)
    assert (error.message, error.param) == (f"n is {n}; it must lie in [1, 128]", "n")


@pytest.mark.parametrize(("prompt", "token"), [((0, 10), 10), ((3, -1, 99), -1), ((10**30,), 10**30)])
def test_the_first_token_outside_the_vocabulary_is_named(prompt: tuple[int, ...], token: int) -> None:
    replace(REQUEST, prompt=(0, 9)).validate(10)
    error = refusal(prompt=prompt)
    assert error.message == f"prompt holds token {token}; this model's ids go from 0 to 9"
    assert error.param == "prompt"


def test_ids_are_looked_through_unless_whoever_made_them_has_made_sure() -> None:
    replace(REQUEST, prompt=(0, 9), ids_below=10).validate(10)
    replace(REQUEST, prompt=(0, 99), ids_below=10).validate(10)  # nobody looks: it was promised
    error = refusal(prompt=(0, 10), ids_below=11)
    assert error.message == "prompt holds token 10; this model's ids go from 0 to 9"


def test_a_deadline_may_be_endless_but_not_undefined() -> None:
    replace(REQUEST, deadline_s=math.inf).validate(10)
    replace(REQUEST, deadline_s=-1.0).validate(10)
    assert "not a number" in refusal(deadline_s=math.nan).message


def test_sampling_is_checked_with_the_request() -> None:
    assert refusal(sampling=SamplingParams(top_p=0.0)).param == "top_p"
    assert refusal(sampling=SamplingParams(stop_token_ids=(10,))).param == "stop_token_ids"


def test_a_request_is_a_value() -> None:
    assert Request(RequestId("r"), (1, 2, 3)) == REQUEST
    assert hash(REQUEST) == hash(Request(RequestId("r"), (1, 2, 3)))
    with pytest.raises(FrozenInstanceError):
        REQUEST.n = 2  # type: ignore[misc]


def test_a_sequence_counts_its_tokens() -> None:
    seq = Sequence(SeqId(0), REQUEST, 0, 7, 9, 0.0, [1, 2, 3, 40, 50])
    assert (seq.num_prompt, seq.num_output, seq.output) == (3, 2, [40, 50])
    assert seq.num_uncomputed == 5
    seq.num_computed, seq.num_scheduled = 2, 1
    assert seq.num_uncomputed == 2


def test_what_follows_from_a_request_is_known_from_the_start() -> None:
    seq = Sequence(SeqId(0), REQUEST, 0, 7, 9, 0.0, [1, 2, 3])
    assert (seq.num_prompt, seq.num_inputs, seq.num_to_score, seq.is_steered) == (3, 11, 0, False)
    scored = replace(REQUEST, sampling=SamplingParams(prompt_logprobs=0))
    assert [Sequence(SeqId(0), scored, choice, 7, 9, 0.0).num_to_score for choice in (0, 1)] == [3, 0]
    assert Sequence(SeqId(0), replace(scored, task=Task.EMBED), 0, 7, 0, 0.0).num_to_score == 0
    assert Sequence(SeqId(0), REQUEST, 0, 7, 9, 0.0, mask=b"\1").is_steered


def test_a_sequence_may_be_given_what_is_known_then_what_only_the_device_knows_but_nobody_computes_the_last() -> None:
    seq = Sequence(SeqId(0), REQUEST, 0, 7, 2, 0.0, [1, 2, 3])
    plannable = []
    for scheduled in range(6):
        seq.num_scheduled = scheduled
        plannable.append(seq.num_plannable)
    assert plannable == [3, 2, 1, 1, 0, 0]


def test_two_sequences_are_never_equal_because_they_change() -> None:
    first, second = (Sequence(SeqId(0), REQUEST, 0, 7, 9, 0.0) for _ in range(2))
    assert first != second
    assert len({first, second}) == 2


def test_words_of_the_interface_are_what_clients_read() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort", "error"]
    assert [str(kind) for kind in ServiceClass] == ["online", "batch"]
