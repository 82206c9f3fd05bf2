"""Answers do not depend on the policy: a made-up model through the whole engine under every preset, in fused steps and
in steps side by side on random shares, gives every request what it gets alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.conformance.serving import Ledger, Serving, Setup, alone
from tests.properties.test_load_tiny import NOISE, REQUESTS, SERVED, of_requests

from plait.assembly import Drafting, Policy
from plait.core.step import StepShape
from plait.cost.model import Bound, StepPrice
from plait.draft.depth import FixedDepth, PricedDepth
from plait.draft.ngram import NgramDrafts
from plait.sched.multiplex.presets import BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE, Preset, static_split, timed_chunks
from plait.sched.multiplex.situation import Choice, Form, Situation

SPANS = len(SERVED.program.spans)


class AnyPrice:
    """Prices that say nothing true: decisions, and with them shares and chunks, become a matter of chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = self._random.uniform(1e-4, 0.02)
        bound = self._random.choice((Bound.COMPUTE, Bound.MEMORY))
        return StepPrice(seconds, seconds * self._random.uniform(1.0, 3.0), bound)


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    serving = Serving(SERVED, Setup())
    found = Ledger(alone(serving, REQUESTS))
    serving.close()
    return found


def serve(preset: Preset, seed: int, *, has_lanes: bool, drafting: Drafting | None = None) -> tuple[Serving, set[Form]]:
    forms: set[Form] = set()

    def observe(situation: Situation, choice: Choice) -> None:
        forms.add(choice.form)

    policy = Policy(preset, AnyPrice(seed), num_spans=SPANS, has_lanes=has_lanes, observe=observe)
    serving = Serving(SERVED, Setup(max_step_tokens=48, enable_prefix=seed % 2 == 1, policy=policy, drafting=drafting))
    serving.serve([*REQUESTS, NOISE], aborted={NOISE.id: 40}, ticks_between=2)
    serving.close()
    return serving, forms


@pytest.mark.parametrize("preset", [BULLET, MUXWISE, PLAIT, XYSERVE, timed_chunks(0.01)], ids=lambda one: one.name)
def test_fused_steps_of_any_policy_give_the_answers_of_solitude(ledger: Ledger, preset: Preset) -> None:
    for seed in (1, 2):
        serving, forms = serve(preset, seed, has_lanes=False)
        ledger.check(of_requests(serving))
        assert forms <= {Form.FUSED, Form.DECODE}
        assert Form.FUSED in forms


@pytest.mark.parametrize("preset", [BULLET, MUXWISE, PLAIT, TEMPORAL, static_split(1)], ids=lambda one: one.name)
def test_lanes_of_any_policy_give_the_answers_of_solitude(ledger: Ledger, preset: Preset) -> None:
    for seed in (1, 2):
        serving, forms = serve(preset, seed, has_lanes=True)
        ledger.check(of_requests(serving))
        assert forms & {Form.LANES, Form.PREFILL}


@pytest.mark.parametrize("has_lanes", [False, True], ids=["fused", "lanes"])
@pytest.mark.parametrize("preset", [PLAIT, XYSERVE], ids=lambda one: one.name)
def test_drafts_under_a_policy_give_the_answers_of_solitude(ledger: Ledger, preset: Preset, has_lanes: bool) -> None:
    serving, _ = serve(preset, 1, has_lanes=has_lanes, drafting=Drafting(NgramDrafts(), FixedDepth(3)))
    ledger.check(of_requests(serving))
    assert serving.num_drafts > 20


@pytest.mark.parametrize("has_lanes", [False, True], ids=["fused", "lanes"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_drafts_by_whatever_prices_give_the_answers_of_solitude(ledger: Ledger, seed: int, has_lanes: bool) -> None:
    """Somebody is cancelled while his step is in flight, too."""
    drafting = Drafting(NgramDrafts(), PricedDepth())
    serving, _ = serve(PLAIT, seed, has_lanes=has_lanes, drafting=drafting)
    ledger.check(of_requests(serving))
