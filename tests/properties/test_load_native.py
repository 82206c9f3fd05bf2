"""The answer does not depend on the load, nor on how the native executor works: the same bits, whatever is done to it.

The made-up model covers every sampling rule in every company; the real one covers depth, vocabulary and quantised
weights. Expected answers are those that every request gets alone, on one worker, in whole chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.models import VOCAB_SIZE, tiny_model
from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, AnswerKey, Served, Serving, Setup, alone, compare
from tests.properties import test_load_model as real
from tests.properties import test_load_tiny as tiny

from plait import _native
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.model.config import config_from_gguf
from plait.model.families import build_program
from plait.model.ops import Linear
from plait.model.program import expected_weights
from plait.weights.gguf import read_gguf
from plait.weights.names import load_gguf_weights

Answers = dict[AnswerKey, Answer]

QUIET = Treatment(threads=1)
TWO = Treatment(threads=2)
BUDGETS = (1, 7, 64, 512)
KEY_TILE = 256
NUM_BLOCKINGS = 50
"""Random ways of cutting work into units; the first few of them run by default."""
BLOCKINGS = [
    range(1, 6),
    range(6, 11),
    *(pytest.param(range(first, first + 10), marks=pytest.mark.slow) for first in range(11, NUM_BLOCKINGS, 10)),
]

TREATMENTS = {
    "one worker": QUIET,
    "two workers": TWO,
    "shares and suspends": Treatment(threads=2, meddling_seed=1),
    "three workers on fewer cores, meddled with": Treatment(threads=3, meddling_seed=2, blocking_seed=7),
}


def check_bits(answers: Answers, expected: Answers) -> int:
    """Equal tokens and endings, and every log-probability to the last bit. Returns how many were compared."""
    found = compare(answers, expected)
    assert found.num_equal == found.num_logprobs, found
    assert found.largest == 0.0, found
    return found.num_logprobs


@pytest.fixture(scope="module")
def tiny_answers() -> Answers:
    serving = Serving(tiny.SERVED, Setup(max_step_tokens=512, make_room=QUIET))
    answers = alone(serving, [*tiny.REQUESTS, *tiny.GROWING])
    serving.close()
    return answers


def serve_tiny(setup: Setup, *, ticks_between: int = 0) -> Serving:
    serving = Serving(tiny.SERVED, setup)
    serving.serve([*tiny.REQUESTS, tiny.NOISE], aborted={tiny.NOISE.id: 40}, ticks_between=ticks_between)
    serving.close()
    return serving


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("enable_prefix", [False, True], ids=["no index", "index"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_answers_are_the_same_in_any_company_chunks_and_shares(
    tiny_answers: Answers, budget: int, enable_prefix: bool, treatment: str
) -> None:
    setup = Setup(max_step_tokens=budget, enable_prefix=enable_prefix, make_room=TREATMENTS[treatment])
    serving = serve_tiny(setup, ticks_between=0 if budget < 64 else 3)
    check_bits(dict(tiny.of_requests(serving)), tiny_answers)
    if budget > 1:
        assert serving.most_chunks >= 4
    assert any(answer.num_cached for answer in serving.answers.values()) == enable_prefix


@pytest.mark.parametrize("seeds", BLOCKINGS, ids=str)
def test_answers_are_the_same_however_work_is_cut(tiny_answers: Answers, seeds: range) -> None:
    for seed in seeds:
        treatment = Treatment(threads=1 + seed % 2, blocking_seed=seed, paced=False)
        serving = serve_tiny(Setup(max_step_tokens=(7, 64, 512)[seed % 3], make_room=treatment))
        check_bits(dict(tiny.of_requests(serving)), tiny_answers)


@pytest.mark.parametrize("target", _native.build_info()["targets"])
def test_answers_are_the_same_with_every_instruction_set(tiny_answers: Answers, target: str) -> None:
    serving = serve_tiny(Setup(max_step_tokens=64, make_room=Treatment(target=target)))
    check_bits(dict(tiny.of_requests(serving)), tiny_answers)


def test_answers_of_weights_rounded_at_load_are_the_same_under_every_load() -> None:
    """Rows end within a group of 128 numbers, so that work is also cut where a group is shorter."""
    model = tiny_model(hidden=160, ffn_hidden=288)
    products = {op.weight: op.weight for op in model.program.ops if isinstance(op, Linear)}
    weights = model.table().rounded("int8", products, head="head")
    served = replace(tiny.SERVED, program=model.program, weights=weights)
    quiet = Serving(served, Setup(max_step_tokens=512, make_room=QUIET))
    expected = alone(quiet, [*tiny.REQUESTS, *tiny.GROWING])
    quiet.close()
    for place, target in enumerate(_native.targets()):
        for budget in BUDGETS:
            treatment = Treatment(threads=2, meddling_seed=place, blocking_seed=budget, target=target)
            serving = Serving(served, Setup(max_step_tokens=budget, enable_prefix=budget == 64, make_room=treatment))
            serving.serve([*tiny.REQUESTS, tiny.NOISE], aborted={tiny.NOISE.id: 40})
            serving.close()
            check_bits(dict(tiny.of_requests(serving)), expected)


@pytest.mark.parametrize("budget", [7, 64])
def test_answers_are_the_same_from_a_warm_index(tiny_answers: Answers, budget: int) -> None:
    serving = Serving(tiny.SERVED, Setup(max_step_tokens=budget, enable_prefix=True, make_room=TWO))
    serving.serve(tiny.REQUESTS)
    check_bits(serving.serve(tiny.REQUESTS), tiny_answers)
    serving.close()
    assert all(answer.num_cached for key, answer in serving.answers.items() if key[0] != tiny.REQUESTS[0].id)


def write_family() -> list[Request]:
    """Ten requests that share more than a key tile, so that a step attends to its blocks once for all of them."""
    random = np.random.default_rng(8)
    beginning = tuple(int(token) for token in random.integers(4, VOCAB_SIZE, 300))
    return [
        Request(
            RequestId(f"family-{index}"),
            beginning + tuple(int(token) for token in random.integers(4, VOCAB_SIZE, 1 + 5 * index)),
            replace(tiny.SAMPLINGS[index % len(tiny.SAMPLINGS)], max_tokens=16, ignore_eos=True),
        )
        for index in range(10)
    ]


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("budget", [7, 64])
def test_answers_are_the_same_from_blocks_that_are_shared(budget: int, treatment: str) -> None:
    family = write_family()
    quiet = Serving(tiny.SERVED, Setup(max_step_tokens=512, make_room=QUIET))
    expected = alone(quiet, family)
    quiet.close()
    setup = Setup(max_step_tokens=budget, enable_prefix=True, make_room=TREATMENTS[treatment])
    serving = Serving(tiny.SERVED, setup)
    check_bits(serving.serve(family), expected)
    serving.close()
    assert sum(answer.num_cached > KEY_TILE for answer in serving.answers.values()) == len(family) - 1


@pytest.mark.parametrize("treatment", ["two workers", "shares and suspends"])
@pytest.mark.parametrize("budget", [7, 64])
def test_answers_are_the_same_after_preemptions(tiny_answers: Answers, budget: int, treatment: str) -> None:
    serving = Serving(tiny.SERVED, Setup(budget, cache_tokens=208, make_room=TREATMENTS[treatment]))
    check_bits(serving.serve(tiny.GROWING), tiny_answers)
    serving.close()
    assert serving.num_preemptions >= 5


def write_crowd() -> list[Request]:
    """Thirty-two requests: each of the real model's twice, then pieces of them, so that beginnings of every length are
    shared. Answers are long enough for all of them to run at once.
    """
    twice = [replace(one, id=RequestId(f"again-{one.id}")) for one in real.REQUESTS]
    cut = [
        replace(one, id=RequestId(f"cut-{one.id}"), prompt=one.prompt[: len(one.prompt) * 2 // 3 + 1])
        for one in real.REQUESTS[:8]
    ]
    return [
        replace(one, sampling=replace(one.sampling, max_tokens=16 + at % 5))
        for at, one in enumerate([*real.REQUESTS, *twice, *cut])
    ]


CROWD = write_crowd()


@pytest.fixture(scope="module")
def served(model_path: Path) -> Served:
    file = read_gguf(model_path)
    program = build_program(config_from_gguf(file.metadata, file.tensors.keys()))
    weights = load_gguf_weights(file, expected_weights(program), "0" * 64)
    return Served(program, weights, tokens_per_block=real.BLOCK, max_model_tokens=2048)


@pytest.fixture(scope="module")
def real_answers(served: Served, request: pytest.FixtureRequest) -> Iterator[Answers]:
    serving = Serving(served, Setup(max_step_tokens=512, cache_tokens=1024, make_room=QUIET))
    answers = alone(serving, [*CROWD, *real.GROWING])
    serving.close()
    yield answers
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        count = sum(len(answer.logprobs) for answer in answers.values())
        print(
            f"\nnative, real model: {count} log-probabilities of {len(answers)} answers are what every load must give"
        )


USUAL = {
    (1, "shares and suspends"),
    (7, "two workers"),
    (64, "one worker"),
    (64, "shares and suspends"),
    (512, "two workers"),
}
"""Every budget and every treatment; all pairs of them are slow."""


@pytest.mark.model
@pytest.mark.parametrize(
    ("budget", "treatment"),
    [
        pytest.param(*pair, marks=() if pair in USUAL else pytest.mark.slow)
        for pair in product(BUDGETS, ("one worker", "two workers", "shares and suspends"))
    ],
)
def test_the_real_models_answers_are_the_same(
    served: Served, real_answers: Answers, budget: int, treatment: str
) -> None:
    requests = CROWD if budget > 1 else [one for one in CROWD if len(one.prompt) < 50][:8]
    setup = Setup(max_step_tokens=budget, cache_tokens=4096, max_rows=32, make_room=TREATMENTS[treatment])
    serving = Serving(served, setup)
    check_bits(serving.serve(requests), real_answers)
    serving.close()
    assert serving.most_chunks >= {1: 1, 7: 4, 64: 16, 512: 32}[budget]


@pytest.mark.model
@pytest.mark.parametrize("treatment", [pytest.param("two workers", marks=pytest.mark.slow), "shares and suspends"])
def test_the_real_models_answers_are_the_same_from_a_cold_and_from_a_warm_index(
    served: Served, real_answers: Answers, treatment: str
) -> None:
    setup = Setup(64, cache_tokens=8192, enable_prefix=True, max_rows=32, make_room=TREATMENTS[treatment])
    serving = Serving(served, setup)
    check_bits(serving.serve(CROWD), real_answers)
    check_bits(serving.serve(CROWD, ticks_between=1), real_answers)
    serving.close()
    in_part = [answer.num_cached % real.BLOCK for answer in serving.answers.values()]
    assert sum(rest > 0 for rest in in_part) >= 3, "some copied part of a block"


@pytest.mark.model
def test_the_real_models_answers_are_the_same_after_preemptions(served: Served, real_answers: Answers) -> None:
    serving = Serving(served, Setup(max_step_tokens=32, cache_tokens=5 * real.BLOCK, make_room=TWO))
    check_bits(serving.serve(real.GROWING), real_answers)
    serving.close()
    assert serving.num_preemptions >= 1


@pytest.mark.model
@pytest.mark.parametrize("seeds", BLOCKINGS, ids=str)
def test_the_real_models_answers_are_the_same_however_work_is_cut(
    served: Served, real_answers: Answers, seeds: range
) -> None:
    for seed in seeds:
        treatment = Treatment(threads=1 + seed % 2, blocking_seed=seed, paced=False)
        serving = Serving(served, Setup(max_step_tokens=(7, 64, 512)[seed % 3], make_room=treatment))
        check_bits(serving.serve(CROWD[seed % 4 : 24 : 4]), real_answers)
        serving.close()


@pytest.mark.model
@pytest.mark.parametrize("target", [name for name in _native.build_info()["targets"] if name != "baseline"])
def test_the_real_models_answers_are_the_same_with_every_instruction_set(
    served: Served, real_answers: Answers, target: str
) -> None:
    serving = Serving(served, Setup(max_step_tokens=64, make_room=Treatment(target=target)))
    check_bits(serving.serve(CROWD[:12]), real_answers)
    serving.close()
