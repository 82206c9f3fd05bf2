"""Drafts change no answer: whatever is guessed, on either executor, in every company, every token, ending and
log-probability is to the last bit what it is without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.conformance.drafting import adversaries
from tests.conformance.serving import Answer, AnswerKey, Ledger, Serving, Setup, alone
from tests.properties import test_load_tiny as tiny

from plait.core.request import Request

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.models import VOCAB_SIZE
from tests.conformance.native_rooms import Treatment
from tests.properties import test_load_forms as forms
from tests.properties.test_load_native import QUIET, check_bits

KINDS = list(adversaries([], VOCAB_SIZE))
ASKED = [*tiny.REQUESTS, *tiny.GROWING]


def texts(requests: list[Request], answers: Mapping[AnswerKey, Answer]) -> list[list[int]]:
    prompts = {one.id: one.prompt for one in requests}
    return [[*prompts[request], *answer.tokens] for (request, _), answer in answers.items()]


@pytest.fixture(scope="module")
def expected() -> dict[AnswerKey, Answer]:
    serving = Serving(tiny.SERVED, Setup(max_step_tokens=512, make_room=QUIET))
    answers = alone(serving, ASKED)
    serving.close()
    return answers


@pytest.mark.parametrize("kind", KINDS)
def test_natively_computed_answers_are_the_same(expected: dict[AnswerKey, Answer], kind: str) -> None:
    drafting = adversaries(texts(ASKED, expected), VOCAB_SIZE)[kind]
    for place, budget in enumerate((7, 64, 512)):
        setup = Setup(
            budget,
            enable_prefix=budget != 7,
            make_room=Treatment(threads=1 + place % 2, blocking_seed=place),
            drafting=drafting,
        )
        serving = Serving(tiny.SERVED, setup)
        serving.serve([*tiny.REQUESTS, tiny.NOISE], aborted={tiny.NOISE.id: 40}, ticks_between=place)
        check_bits(dict(tiny.of_requests(serving)), expected)
        if kind in ("always right", "right to some place", "over-long"):
            assert serving.num_accepted > 100
        elif kind == "empty":
            assert serving.num_drafts == 0
        elif kind == "always wrong":
            assert serving.num_drafts > 50
            assert serving.num_accepted < 5
        serving.serve(tiny.GROWING)
        check_bits(serving.answers, expected)
        serving.close()


@pytest.mark.parametrize("kind", ["always right", "right to some place", "n-grams"])
def test_so_they_are_behind_preemptions(expected: dict[AnswerKey, Answer], kind: str) -> None:
    drafting = adversaries(texts(ASKED, expected), VOCAB_SIZE)[kind]
    setup = Setup(64, cache_tokens=208, enable_prefix=True, make_room=QUIET, drafting=drafting)
    serving = Serving(tiny.SERVED, setup)
    check_bits(serving.serve(tiny.GROWING), expected)
    serving.close()
    assert serving.num_preemptions >= 5


@pytest.mark.parametrize("visibility", ["causal", "window beside causal", "chunked beside window", "states only"])
def test_so_is_every_form_of_answer(visibility: str) -> None:
    subject, requests = forms.served(visibility), forms.write_requests(4)
    quiet = Serving(subject, Setup(max_step_tokens=512, make_room=QUIET))
    wanted = alone(quiet, requests)
    quiet.close()
    for kind, drafting in adversaries(texts(requests, wanted), VOCAB_SIZE).items():
        serving = Serving(subject, Setup(24, enable_prefix=True, make_room=QUIET, drafting=drafting))
        forms.check_all(serving.serve(requests), wanted)
        serving.close()
        if kind == "always right":
            assert serving.num_accepted > 50


def test_the_reference_gives_the_same(expected: dict[AnswerKey, Answer]) -> None:
    asked = [replace(one, n=1) for one in tiny.REQUESTS]
    quiet = Serving(tiny.SERVED, Setup())
    wanted = alone(quiet, asked)
    quiet.close()
    for kind in ("always right", "right to some place", "out of the vocabulary"):
        drafting = adversaries(texts(asked, wanted), VOCAB_SIZE)[kind]
        serving = Serving(tiny.SERVED, Setup(drafting=drafting))
        Ledger(wanted).check(serving.serve(asked))
        serving.close()
        assert serving.num_accepted > 30
