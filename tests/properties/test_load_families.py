"""The answer does not depend on the load, whatever the family: the same bits in company, in chunks, behind a prefix and
after a preemption, with every instruction set.

Expected answers are those that every request gets alone, on one worker, in whole chunks. The treatments are those of
`test_load_native.py`; here a few of them meet every form of layer: windows, caps, norms of heads, partial rotation.
"""

from __future__ import annotations

import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.families import CASES, FamilyCase, FamilyModel, family_model, one_of_each, rounded_model
from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, AnswerKey, Served, Serving, Setup, alone, grows, least_cache_tokens
from tests.properties import test_load_tiny as tiny
from tests.properties.test_load_native import QUIET, check_bits

from plait import _native
from plait.core.request import Request
from plait.model.cache_layout import plan_layout, token_bytes
from plait.model.cache_type import CacheType

BLOCK = 8
LONGEST = 96
"""Tokens of a request that every case has positions for."""
REQUESTS = [one for one in tiny.REQUESTS if len(one.prompt) + one.sampling.max_tokens <= LONGEST][2:]
GROWING = tiny.GROWING[:6]


def served(model: FamilyModel) -> Served:
    return Served(model.program, model.weights, BLOCK, LONGEST, eos_token_ids=(3,))


def answers_of(subject: Served, setup: Setup, requests: list[Request]) -> Serving:
    serving = Serving(subject, setup)
    serving.serve(requests)
    serving.close()
    return serving


def few_tokens(subject: Served) -> int:
    """Enough for prompts and not for their answers; where a state fills a page, room for two of them and one more."""
    if not any(group.is_state for group in subject.program.cache_groups):
        least = least_cache_tokens(subject, LONGEST)
        return least + max(BLOCK, least // 3)
    layout = plan_layout(subject.program, memory_bytes=1 << 30, tokens_per_block=BLOCK, cache_type=CacheType.F16)
    return -(-3 * layout.page_bytes // token_bytes(subject.program, CacheType.F16))


def expected_answers(subject: Served) -> dict[AnswerKey, Answer]:
    serving = Serving(subject, Setup(max_step_tokens=512, make_room=QUIET))
    answers = alone(serving, [*REQUESTS, *GROWING])
    serving.close()
    return answers


def test_enough_is_asked_to_share_beginnings_and_steps() -> None:
    assert len(REQUESTS) >= 7
    assert any(len(one.prompt) > 32 for one in REQUESTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answers_of_every_family_are_the_same_under_every_load(case: FamilyCase) -> None:
    subject = served(family_model(case))
    expected = expected_answers(subject)
    targets = _native.targets()
    cut = Treatment(threads=2, target=targets[case.number % len(targets)], blocking_seed=1 + case.number)
    in_part = answers_of(subject, Setup(7, enable_prefix=True, make_room=cut), REQUESTS)
    check_bits(in_part.answers, expected)
    assert in_part.most_chunks >= 4
    assert any(answer.num_cached for answer in in_part.answers.values())
    plain = Treatment(threads=1, target=targets[(case.number + 1) % len(targets)])
    crowded = answers_of(subject, Setup(64, cache_tokens=few_tokens(subject), make_room=plain), GROWING)
    check_bits(crowded.answers, expected)
    assert crowded.num_preemptions >= 1 or not grows(subject)


@pytest.mark.parametrize("case", one_of_each(CASES), ids=lambda case: case.name)
def test_answers_of_eight_bit_products_are_the_same_under_every_load(case: FamilyCase) -> None:
    subject = served(rounded_model(case))
    expected = expected_answers(subject)
    targets = _native.targets()
    cut = Treatment(threads=2, target=targets[case.number % len(targets)], blocking_seed=1 + case.number)
    serving = answers_of(subject, Setup(7, enable_prefix=True, make_room=cut), REQUESTS)
    check_bits(serving.answers, expected)
    assert serving.most_chunks >= 4
