"""The answer does not depend on the load: the real model through the whole engine, alone and in company.

Fewer loads than for the made-up model, because each takes seconds; vocabulary, depth and prompts as they really are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.serving import Ledger, Served, Serving, Setup, alone

from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.model.config import config_from_gguf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.weights.gguf import read_gguf
from plait.weights.names import load_gguf_weights

pytestmark = pytest.mark.model

GOLDENS = Path(__file__).parents[1] / "data" / "goldens" / "smollm2.npz"
BLOCK = 16
SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=0.8, logprobs=0, top_p=0.9, top_k=40, seed=4),
    SamplingParams(temperature=0.0, logprobs=0, repetition_penalty=1.2, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, logprobs=1, presence_penalty=0.6, min_p=0.02, seed=9),
)


def write_requests() -> list[Request]:
    """Pieces of the golden prompts: chat, code, prose, digits and emoji. Five share their beginning."""
    with np.load(GOLDENS) as file:
        texts = {str(name): tuple(int(token) for token in file[f"{name}/ids"]) for name in file["names"]}
    maths, prose, code = texts["few_shot_maths"], texts["long_text"], texts["code"]
    prompts = [
        texts["one_token"],
        texts["chat_question"],
        code[:70],
        prose[:33],
        texts["digits_unicode"][:40],
        prose[600:617],
    ]
    prompts += [
        maths[:64],
        maths[:50],
        maths[:48] + prose[300:310],
        maths[:65],
        maths[:32] + code[90:100],
        prose[100:149],
    ]
    return [
        Request(RequestId(f"request-{at}"), prompt, replace(SAMPLINGS[at % 4], max_tokens=5 + at % 3))
        for at, prompt in enumerate(prompts)
    ]


REQUESTS = write_requests()
GROWING = [
    replace(
        one,
        id=RequestId(f"growing-{one.id}"),
        prompt=one.prompt[:8],
        sampling=replace(one.sampling, max_tokens=26, ignore_eos=True),
    )
    for one in REQUESTS[:4]
]
"""Three blocks each in the end, of five that there are."""


@pytest.fixture(scope="module")
def served(model_path: Path) -> Served:
    file = read_gguf(model_path)
    program = build_program(config_from_gguf(file.metadata, file.tensors.keys()))
    weights = load_gguf_weights(file, expected_weights(program), "0" * 64)
    return Served(program, weights, tokens_per_block=BLOCK, max_model_tokens=2048)


@pytest.fixture(scope="module")
def ledger(served: Served, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """The answers that every request gets alone; says at the end how near all others came to them."""
    serving = Serving(served, Setup(cache_tokens=512))
    found = Ledger(alone(serving, [*REQUESTS, *GROWING]))
    serving.close()
    yield found
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nreal model under load: {found.total}")


def test_answers_are_the_same_in_one_batch_with_short_chunks(served: Served, ledger: Ledger) -> None:
    serving = Serving(served, Setup(max_step_tokens=7, cache_tokens=1024))
    ledger.check(serving.serve(REQUESTS[1:5]))
    serving.close()
    assert serving.most_chunks >= 3


def test_answers_are_the_same_token_by_token(served: Served, ledger: Ledger) -> None:
    serving = Serving(served, Setup(max_step_tokens=1, cache_tokens=512))
    ledger.check(serving.serve([REQUESTS[0], REQUESTS[5]]))
    serving.close()


def test_answers_are_the_same_from_a_cold_and_from_a_warm_index(served: Served, ledger: Ledger) -> None:
    serving = Serving(served, Setup(max_step_tokens=64, cache_tokens=2048, enable_prefix=True))
    ledger.check(serving.serve(REQUESTS))
    assert serving.most_chunks >= 8
    cold = sum(answer.num_cached for answer in serving.answers.values())
    ledger.check(serving.serve(REQUESTS, ticks_between=1))
    serving.close()
    warm = {one.id: serving.answers[one.id, 0].num_cached for one in REQUESTS}
    assert sum(warm.values()) > cold > 0
    in_blocks = {one.id: (len(one.prompt) - 1) // BLOCK * BLOCK for one in REQUESTS}
    assert all(warm[name] >= in_blocks[name] for name in warm)
    assert sum(warm[name] > in_blocks[name] for name in warm) >= 3, "some copied part of a block as well"


def test_answers_are_the_same_after_preemptions(served: Served, ledger: Ledger) -> None:
    serving = Serving(served, Setup(max_step_tokens=32, cache_tokens=5 * BLOCK))
    ledger.check(serving.serve(GROWING))
    serving.close()
    assert serving.num_preemptions >= 1
