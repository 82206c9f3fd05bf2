"""Answers of a model with states are the same bits whatever becomes of the states: kept inside chunks, taken up behind
a prefix, shared among choices, given up in a preemption or an abort.

Expected answers are those that every request gets alone, on one worker, in whole chunks, without an index.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.families import CASES, family_model
from tests.conformance.models import MAX_POSITIONS, tiny_rwkv
from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, AnswerKey, Served, Serving, Setup, alone
from tests.properties import test_load_tiny as tiny
from tests.properties.test_load_native import QUIET, check_bits

from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams

BLOCK = 8
PAGE_TOKENS = 88
"""Tokens whose keys and values, in halves, take as many bytes as a state: a page."""
TREATMENTS = {
    "one worker": Treatment(threads=1),
    "shares and suspends": Treatment(threads=2, meddling_seed=1, blocking_seed=5),
}


@cache
def served() -> Served:
    case = next(case for case in reversed(CASES) if case.model_type == "bamba")
    model = family_model(case)
    return Served(model.program, model.weights, BLOCK, 200, eos_token_ids=(3,))


def write_requests() -> list[Request]:
    """Prompts of a few documents with questions behind them, some asked twice, one with three choices."""
    random = np.random.default_rng(11)

    def text(count: int) -> tuple[int, ...]:
        return tuple(int(token) for token in random.integers(4, 131, count))

    documents = [text(count) for count in (41, 64, 90)]
    asked = [(*document, *text(3 + 4 * number)) for document in documents for number in range(3)]
    asked += [asked[0], asked[4], documents[1], text(BLOCK), text(1), text(BLOCK - 3)]
    requests = []
    for number, prompt in enumerate(asked):
        sampling = replace(tiny.SAMPLINGS[number % len(tiny.SAMPLINGS)], max_tokens=10 + number % 4)
        requests.append(Request(RequestId(f"request-{number}"), prompt, sampling, n=3 if number == 5 else 1))
    return requests


REQUESTS = write_requests()
GROWING = tiny.GROWING[:6]
NOISE = Request(RequestId("noise"), tuple(range(4, 90)), SamplingParams(max_tokens=100, ignore_eos=True))


@pytest.fixture(scope="module")
def expected() -> dict[AnswerKey, Answer]:
    serving = Serving(served(), Setup(max_step_tokens=512, make_room=QUIET))
    answers = alone(serving, [*REQUESTS, *GROWING])
    serving.close()
    return answers


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("budget", [1, 7, 64, 512])
def test_from_a_cold_and_from_a_warm_index(expected: dict[AnswerKey, Answer], budget: int, treatment: str) -> None:
    setup = Setup(budget, enable_prefix=True, cache_tokens=8192, make_room=TREATMENTS[treatment])
    serving = Serving(served(), setup)
    check_bits(serving.serve(REQUESTS, ticks_between=2), expected)
    cold = {key: answer.num_cached for key, answer in serving.answers.items()}
    check_bits(serving.serve(REQUESTS), expected)
    serving.close()
    warm = {key: answer.num_cached for key, answer in serving.answers.items()}
    assert any(cold.values())
    for request in REQUESTS:
        # The same prompt again goes on from the state behind its last whole block but for one token; one that is no
        # longer than a block, which the first answer has filled, from that behind all but its last token.
        before_last = len(request.prompt) - 1
        assert warm[request.id, 0] == (before_last // BLOCK * BLOCK or before_last)


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("budget", [1, 7, 512])
def test_where_there_are_states_alone_all_but_the_last_token_is_found(budget: int, treatment: str) -> None:
    model = tiny_rwkv()
    subject = Served(model.program, model.table(), BLOCK, MAX_POSITIONS, eos_token_ids=(3,))
    vocab = model.program.vocab_size
    asked = [replace(one, prompt=tuple(4 + token % (vocab - 4) for token in one.prompt)) for one in REQUESTS]
    quiet = Serving(subject, Setup(max_step_tokens=512, make_room=QUIET))
    answers = alone(quiet, asked)
    quiet.close()
    serving = Serving(subject, Setup(budget, enable_prefix=True, cache_tokens=8192, make_room=TREATMENTS[treatment]))
    check_bits(serving.serve(asked, ticks_between=2), answers)
    check_bits(serving.serve(asked), answers)
    serving.close()
    for one in asked:
        assert serving.answers[one.id, 0].num_cached == len(one.prompt) - 1


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_beside_one_who_is_given_up(expected: dict[AnswerKey, Answer], treatment: str) -> None:
    for at in (3, 11):
        serving = Serving(served(), Setup(16, enable_prefix=True, make_room=TREATMENTS[treatment]))
        serving.serve([NOISE, *REQUESTS], aborted={NOISE.id: at})
        serving.close()
        del serving.answers[NOISE.id, 0]
        check_bits(serving.answers, expected)


def test_choices_go_on_from_one_state(expected: dict[AnswerKey, Answer]) -> None:
    request = next(one for one in REQUESTS if one.n > 1)
    serving = Serving(served(), Setup(64, enable_prefix=True, make_room=QUIET))
    check_bits(serving.serve([request]), expected)
    serving.close()
    shared = (len(request.prompt) - 1) // BLOCK * BLOCK
    assert sorted(answer.num_cached for answer in serving.answers.values()) == [0, shared, shared]


@pytest.mark.parametrize("enable_prefix", [False, True], ids=["no index", "index"])
@pytest.mark.parametrize("treatment", TREATMENTS)
def test_after_preemptions(expected: dict[AnswerKey, Answer], treatment: str, enable_prefix: bool) -> None:
    """Three pages: of a state each, or of keys and values that two sequences outgrow."""
    setup = Setup(16, 3 * PAGE_TOKENS, enable_prefix=enable_prefix, make_room=TREATMENTS[treatment])
    serving = Serving(served(), setup)
    check_bits(serving.serve(GROWING), expected)
    serving.close()
    assert serving.num_preemptions >= 1
