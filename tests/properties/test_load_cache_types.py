"""Answers do not depend on the load whatever the cache's numbers are: bf16, and 8 bits with their scales.

The default type goes through everything in test_load_native.py; this is what could differ for another one: reading
blocks that others wrote, copying parts of blocks, stale memory, stacks, and every instruction set.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Served, Serving, Setup, alone
from tests.properties import test_load_tiny as tiny
from tests.properties.test_load_native import Answers, check_bits, write_family

from plait import _native
from plait.model.cache_type import INT8_TOKENS, CacheType

TYPES = [CacheType.BF16, CacheType.INT8]
SERVED: Served = replace(tiny.SERVED, tokens_per_block=INT8_TOKENS)


@pytest.fixture(scope="module", params=TYPES)
def cache_type(request: pytest.FixtureRequest) -> CacheType:
    return CacheType(request.param)


@pytest.fixture(scope="module")
def expected(cache_type: CacheType) -> Answers:
    serving = Serving(SERVED, Setup(512, make_room=Treatment(threads=1, cache_type=cache_type)))
    answers = alone(serving, [*tiny.REQUESTS, *tiny.GROWING, *write_family()])
    serving.close()
    return answers


@pytest.mark.parametrize("target", _native.build_info()["targets"])
@pytest.mark.parametrize("budget", [1, 7, 64])
def test_in_company_and_with_every_instruction_set(
    cache_type: CacheType, expected: Answers, budget: int, target: str
) -> None:
    treatment = Treatment(target=target, cache_type=cache_type, meddling_seed=3, blocking_seed=budget)
    serving = Serving(SERVED, Setup(budget, make_room=treatment))
    check_bits(serving.serve(tiny.REQUESTS), expected)
    serving.close()


@pytest.mark.parametrize("budget", [7, 64])
def test_from_a_cold_and_from_a_warm_index_with_parts_of_blocks(
    cache_type: CacheType, expected: Answers, budget: int
) -> None:
    setup = Setup(budget, enable_prefix=True, make_room=Treatment(cache_type=cache_type))
    serving = Serving(SERVED, setup)
    family = write_family()
    for requests in (tiny.REQUESTS, tiny.REQUESTS, family):
        check_bits(serving.serve(requests), expected)
    serving.close()
    assert any(answer.num_cached % INT8_TOKENS for answer in serving.answers.values()), "some copied part of a block"


def test_after_preemptions(cache_type: CacheType, expected: Answers) -> None:
    serving = Serving(SERVED, Setup(64, cache_tokens=208, make_room=Treatment(cache_type=cache_type)))
    check_bits(serving.serve(tiny.GROWING), expected)
    serving.close()
    assert serving.num_preemptions >= 1
