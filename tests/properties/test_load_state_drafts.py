"""Drafts of models with states change no answer: whatever is rejected, the state is that behind the last accepted
token, to the last bit, on either executor, behind preemptions and prefix hits, with checkpoints on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.drafting import adversaries
from tests.conformance.models import MAX_POSITIONS, tiny_rwkv
from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, AnswerKey, Ledger, Served, Serving, Setup, alone
from tests.properties import test_load_states as states
from tests.properties.test_load_native import QUIET, check_bits
from tests.properties.test_policies_answers import AnyPrice

from plait.assembly import Drafting, Policy
from plait.build import LANES
from plait.core.request import Request
from plait.sched.multiplex.presets import PLAIT, XYSERVE, Preset

KINDS = ("always right", "always wrong", "right to some place", "over-long", "n-grams")
ASKED = [*states.REQUESTS, *states.GROWING]
FAMILIES = ("bamba", "rwkv")


@cache
def served(family: str) -> Served:
    """Mamba-2 with a convolution beside attention; shifts and the delta rule alone."""
    if family == "bamba":
        return states.served()
    model = tiny_rwkv()
    return Served(model.program, model.table(), states.BLOCK, MAX_POSITIONS, eos_token_ids=(3,))


@cache
def asked(family: str) -> tuple[Request, ...]:
    vocab = served(family).program.vocab_size
    return tuple(replace(one, prompt=tuple(4 + token % (vocab - 4) for token in one.prompt)) for one in ASKED)


@cache
def expected(family: str) -> Mapping[AnswerKey, Answer]:
    serving = Serving(served(family), Setup(max_step_tokens=512, make_room=QUIET))
    answers = alone(serving, asked(family))
    serving.close()
    return answers


@cache
def drafting(family: str, kind: str) -> Drafting:
    prompts = {one.id: one.prompt for one in asked(family)}
    texts = [[*prompts[request], *answer.tokens] for (request, _), answer in expected(family).items()]
    return adversaries(texts, served(family).program.vocab_size)[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_natively_computed_answers_are_the_same(family: str, kind: str) -> None:
    for place, budget in enumerate((7, 64)):
        room = Treatment(threads=1 + place, meddling_seed=place, blocking_seed=place)
        setup = Setup(
            budget, enable_prefix=place == 1, cache_tokens=8192, make_room=room, drafting=drafting(family, kind)
        )
        serving = Serving(served(family), setup)
        check_bits(serving.serve(asked(family), ticks_between=place), expected(family))
        if kind == "always wrong":
            assert serving.num_drafts > 30
        elif kind != "n-grams":
            assert serving.num_accepted > 30
        check_bits(serving.serve(asked(family)), expected(family))
        serving.close()


@pytest.mark.parametrize("kind", ["always right", "right to some place"])
def test_so_they_are_behind_preemptions(kind: str) -> None:
    """A page holds a state: copies for rows that may be rejected compete with sequences, and go first."""
    setup = Setup(
        16, 6 * states.PAGE_TOKENS, enable_prefix=True, make_room=QUIET, drafting=drafting("bamba", kind), max_rows=8
    )
    serving = Serving(served("bamba"), setup)
    growing = asked("bamba")[len(states.REQUESTS) :]
    check_bits(serving.serve(growing), expected("bamba"))
    serving.close()
    assert serving.num_preemptions >= 1
    assert serving.num_drafts > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_gives_the_same(family: str) -> None:
    few = [replace(one, n=1) for one in asked(family)[:8]]
    quiet = Serving(served(family), Setup())
    wanted = alone(quiet, few)
    quiet.close()
    for kind in ("always right", "right to some place"):
        serving = Serving(served(family), Setup(drafting=drafting(family, kind)))
        Ledger(wanted).check(serving.serve(few))
        serving.close()
        assert serving.num_accepted > 10


@pytest.mark.parametrize("preset", [PLAIT, XYSERVE], ids=lambda one: one.name)
def test_so_they_are_under_policies_that_price_steps(preset: Preset) -> None:
    subject = served("bamba")
    room = Treatment(threads=3, lanes=LANES, blocking_seed=2, paced=False)
    policy = Policy(preset, AnyPrice(2), num_spans=len(subject.program.spans))
    guesses = drafting("bamba", "right to some place")
    setup = Setup(48, 8192, enable_prefix=True, make_room=room, policy=policy, drafting=guesses)
    serving = Serving(subject, setup)
    check_bits(serving.serve(asked("bamba"), ticks_between=2), expected("bamba"))
    serving.close()
    assert serving.num_accepted > 30
