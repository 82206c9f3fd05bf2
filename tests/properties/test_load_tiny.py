"""The answer does not depend on the load: a made-up model through the whole engine, alone and in every company."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.conformance.models import MAX_POSITIONS, VOCAB_SIZE, tiny_model
from tests.conformance.serving import Answer, AnswerKey, Ledger, Served, Serving, Setup, alone

from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams

MODEL = tiny_model(seed=5)
# Half as sure of itself as other tests want it: log-probabilities of this size are what real models give.
WEIGHTS = MODEL.table({"head": MODEL.arrays["head"] * np.float32(0.5)})
BLOCK = 8
LONGEST = 328
"""Tokens of the longest request, in whole blocks; memory for fewer would refuse it."""
SERVED = Served(MODEL.program, WEIGHTS, tokens_per_block=BLOCK, max_model_tokens=MAX_POSITIONS, eos_token_ids=(3,))

SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=4),
    SamplingParams(temperature=0.0, logprobs=0, frequency_penalty=0.7, presence_penalty=0.3),
    SamplingParams(temperature=1.0, logprobs=2, seed=5),
    SamplingParams(temperature=0.8, logprobs=0, top_k=12, top_p=0.9, seed=-3),
    SamplingParams(temperature=1.3, logprobs=1, min_p=0.02, repetition_penalty=1.4, seed=8),
    SamplingParams(temperature=0.9, logprobs=0, logit_bias=((11, 3.0), (42, -5.0)), min_tokens=4),
)
"""Greedy and drawn, with and without each rule; the last one is seeded by the engine."""


def write_requests() -> list[Request]:
    """Prompts from one token to more than a key tile; five begin alike, two are the same."""
    random = np.random.default_rng(3)

    def text(length: int) -> tuple[int, ...]:
        return tuple(int(token) for token in random.integers(4, VOCAB_SIZE, length))

    system = text(37)
    prompts = [text(1), text(8), text(9), text(270), text(30), system + text(5), system + text(20)]
    prompts += [system, system + text(1), text(64), prompts[4], system[:20] + text(11), text(17)]
    return [
        Request(
            id=RequestId(f"request-{index}"),
            prompt=prompt,
            sampling=replace(
                SAMPLINGS[index % len(SAMPLINGS)], max_tokens=12 + 13 * (index % 4), ignore_eos=index % 2 == 0
            ),
            n=2 if index == 4 else 1,
        )
        for index, prompt in enumerate(prompts)
    ]


REQUESTS = write_requests()
GROWING = [
    replace(
        one,
        id=RequestId(f"growing-{one.id}"),
        prompt=one.prompt[:12],
        n=1,
        sampling=replace(one.sampling, max_tokens=64),
    )
    for one in REQUESTS
]
"""Short prompts with long answers."""
NOISE = Request(RequestId("noise"), tuple(range(4, 90)), SamplingParams(max_tokens=LONGEST - 86, seed=1))
"""Somebody who goes away in the middle of an answer."""


@pytest.fixture(scope="module")
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """The answers that every request gets alone; says at the end how near all others came to them."""
    serving = Serving(SERVED, Setup())
    found = Ledger(alone(serving, [*REQUESTS, *GROWING]))
    assert serving.most_chunks == 1
    serving.close()
    yield found
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\ntiny model under load: {found.total}")


def serve_all(setup: Setup, **how: int) -> Serving:
    serving = Serving(SERVED, setup)
    serving.serve([*REQUESTS, NOISE], aborted={NOISE.id: 40}, **how)
    serving.close()
    return serving


def of_requests(serving: Serving) -> Mapping[AnswerKey, Answer]:
    return {key: answer for key, answer in serving.answers.items() if key[0] != NOISE.id}


COMPANY = {1: 1, 7: 4, 64: 8}
"""Tokens in a step at most, and how many sequences there must have been in one for the test to mean something."""


@pytest.mark.parametrize("ticks_between", [0, 3], ids=["all at once", "one after another"])
@pytest.mark.parametrize("enable_prefix", [False, True], ids=["no index", "index"])
@pytest.mark.parametrize("budget", COMPANY)
def test_answers_are_the_same_in_any_company_and_any_chunks(
    ledger: Ledger, budget: int, enable_prefix: bool, ticks_between: int
) -> None:
    serving = serve_all(Setup(max_step_tokens=budget, enable_prefix=enable_prefix), ticks_between=ticks_between)
    ledger.check(of_requests(serving))
    assert serving.most_chunks >= COMPANY[budget]
    cached = sum(answer.num_cached for answer in of_requests(serving).values())
    assert (cached > 0) == enable_prefix


@pytest.mark.parametrize("budget", COMPANY)
def test_answers_are_the_same_from_a_warm_index(ledger: Ledger, budget: int) -> None:
    serving = Serving(SERVED, Setup(max_step_tokens=budget, enable_prefix=True))
    serving.serve(REQUESTS)
    ledger.check(serving.serve(REQUESTS))
    serving.close()
    in_blocks = {one.id: (len(one.prompt) - 1) // BLOCK * BLOCK for one in REQUESTS}
    assert all(answer.num_cached >= in_blocks[key[0]] for key, answer in serving.answers.items())
    assert sum(answer.num_cached > in_blocks[key[0]] for key, answer in serving.answers.items()) >= 5


@pytest.mark.parametrize("budget", [3, 64])
def test_answers_are_the_same_behind_any_part_of_a_block(ledger: Ledger, budget: int) -> None:
    """Somebody was there before who said the same up to a place inside a block, every place once, and then went on."""
    serving = Serving(SERVED, Setup(max_step_tokens=budget, enable_prefix=True))
    asked = REQUESTS[6]
    for place in range(BLOCK, 3 * BLOCK):
        other = tuple(token + 1 if token + 1 < VOCAB_SIZE else 4 for token in asked.prompt[place : place + 2 * BLOCK])
        before = Request(
            RequestId(f"before-{place}"),
            asked.prompt[:place] + other,
            SamplingParams(max_tokens=1),
            tenant=f"at {place}",
        )
        serving.serve([before])
        ledger.check(serving.serve([replace(asked, tenant=f"at {place}")]))
        assert serving.answers[asked.id, 0].num_cached == place
    serving.close()
    assert serving.kv.explain().index.num_evictions == 0


@pytest.mark.parametrize("enable_prefix", [False, True], ids=["no index", "index"])
@pytest.mark.parametrize("budget", [7, 64])
def test_answers_are_the_same_after_preemptions(ledger: Ledger, budget: int, enable_prefix: bool) -> None:
    """Memory for the prompts of many requests but not for their answers: the youngest leave, and come again."""
    serving = Serving(SERVED, Setup(budget, cache_tokens=208, enable_prefix=enable_prefix))
    ledger.check(serving.serve(GROWING))
    serving.close()
    assert serving.num_preemptions >= 5


def test_a_small_memory_is_reused_many_times_without_a_trace(ledger: Ledger) -> None:
    """Three waves through blocks that hold what the last wave left."""
    serving = Serving(SERVED, Setup(max_step_tokens=24, cache_tokens=LONGEST + 16, enable_prefix=True, max_rows=3))
    for _ in range(3):
        ledger.check(serving.serve(REQUESTS))
    serving.close()
    assert serving.kv.explain().index.num_evictions > 0
